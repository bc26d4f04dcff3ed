// The page of one agenda, live: its table is redrawn, and changes are announced.
import { announce } from "../page.js";
import { watch } from "../watch.js";

/** @import { AgendaView } from "trainyard-api" */

/** @type {AgendaView} */
const agenda = JSON.parse(document.getElementById("agenda-document").textContent);

/**
 * @param {AgendaView} agenda
 * @param {AgendaView} before
 */
function tellChanges(agenda, before) {
  agenda.jobs.forEach((job, index) => {
    const was = before.jobs[index];
    if (job.standing !== was.standing) announce(`${job.name}: ${job.standing}. ${job.reason}`);
    else if (job.late_s && !was.late_s) announce(`${job.name} is late.`);
  });
  if (before.fits && !agenda.fits) announce(agenda.summary);
}

watch(`/v1/agendas/${encodeURIComponent(agenda.id)}`, "agenda", agenda, tellChanges);
