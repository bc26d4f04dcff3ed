// The compared jobs, and their curves.

/** @import { Column } from "../charts/series.js" */

/**
 * A job, as the page was given it.
 * @typedef {object} Compared
 * @property {string} id
 * @property {string} label
 * @property {string} unit
 * @property {number} ranks
 * @property {boolean} comparable
 * @property {number | null} tolerance
 */

/** @type {Compared[]} */
export const jobs = JSON.parse(document.getElementById("compared").textContent);
export const counted = jobs[0].unit;

/** @type {Map<string, Map<string, Column>>} */
export const read = new Map(jobs.map((job) => [job.id, new Map()])); // columns by key, of each job

/**
 * @param {Compared} job
 * @param {string} key
 * @returns {Column}
 */
export const column = (job, key) => read.get(job.id).get(key) ?? { steps: [], values: [] };

/** @param {string} name */
export const figure = (name) => document.querySelector(`[data-chart="${name}"]`);

/** @type {Record<string, string>} */
export const NAMES = {
  minutes: "minutes since the first step",
  tokens: "million tokens seen",
  hours: figure("spent").querySelector("[data-x=hours]").textContent,
};
