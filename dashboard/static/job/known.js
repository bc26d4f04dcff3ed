// State of a job's page: the job's document, its curves, and the predictions of its plan.
import { Series } from "../charts/series.js";

/** @import { CheckpointView, JobSpec, JobView, Plan } from "trainyard-api" */

/** @param {string} id */
const read = (id) => JSON.parse(document.getElementById(id).textContent);

/** @type {CheckpointView[]} */
const checkpoints = read("checkpoint-times");

export const known = {
  /** @type {JobView} */
  job: read("job-document"),
  saves: checkpoints.map((one) => Date.parse(one.created_at)),
  isRead: false, // true once the stored points have been read
  /** @type {number | null} */
  runningSince: null, // when the present attempt began to run, from the newest event that says so
};
export const series = new Series();
export const address = /** @type {const} */ (`/v1/jobs/${encodeURIComponent(known.job.id)}`);
export const isLive = () => !known.job.is_final;
export const lastStep = () => Math.max(known.job.step, series.get("loss").steps.at(-1) ?? 0);

// A recipe says beforehand how far it goes, how fast counts and what it may hold; a program, or a
// job that this version can't read, does not.
const { training } = /** @type {JobSpec} */ (known.job.spec);
const plan = /** @type {Plan} */ (known.job.plan);
export const recipe =
  training && plan.needed_gib !== undefined
    ? { ...plan, maxGradNorm: training.max_grad_norm }
    : null;
