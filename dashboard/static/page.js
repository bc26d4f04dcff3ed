// Parts of every page: times in the viewer's zone, theme, keys, menus, the lease clock.
import { letCopy } from "./copy.js";
import { dropAllDrafts } from "./draft.js";
import "./finder.js";
import { span } from "./formats.js";
import { writeTimes } from "./times.js";

/** @param {string} sentence */
export function announce(sentence) {
  document.getElementById("announce").textContent = sentence;
}

// ---- times and copies -------------------------------------------------------------------------
writeTimes();
document.addEventListener("htmx:after:swap", () => writeTimes());
letCopy(announce);
for (const field of document.querySelectorAll("[data-zone-name]")) {
  field.value = Intl.DateTimeFormat().resolvedOptions().timeZone;
}

// ---- theme ------------------------------------------------------------------------------------
function markTheme() {
  const chosen = localStorage.getItem("theme") || "system";
  for (const button of document.querySelectorAll("[data-set-theme]")) {
    button.setAttribute("aria-pressed", String(button.dataset.setTheme === chosen));
  }
}

/** @param {string} chosen */
function setTheme(chosen) {
  if (chosen === "system") {
    localStorage.removeItem("theme");
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem("theme", chosen);
    document.documentElement.dataset.theme = chosen;
  }
  markTheme();
  dispatchEvent(new Event("themechange"));
}

markTheme();
for (const button of document.querySelectorAll("[data-set-theme]")) {
  button.addEventListener("click", () => setTheme(button.dataset.setTheme));
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  dispatchEvent(new Event("themechange")),
);

// ---- lease clock ------------------------------------------------------------------------------
function tellLease() {
  const element = document.querySelector("[data-lease-stop]");
  if (!element) return;
  const start = new Date(element.dataset.leaseStart);
  const stop = new Date(element.dataset.leaseStop);
  const now = new Date();
  const words = element.querySelector("[data-lease-words]");
  const left = element.querySelector("[data-lease-left]");
  if (now < start) {
    words.textContent = "Lease starts in";
    left.textContent = span(Math.ceil((start.getTime() - now.getTime()) / 60_000) * 60);
  } else {
    words.textContent = now < stop ? "Lease stops jobs in" : "Lease has";
    left.textContent =
      now < stop ? span(Math.ceil((stop.getTime() - now.getTime()) / 60_000) * 60) : "ended";
  }
}

tellLease();
setInterval(tellLease, 10_000);

// ---- forms and menus --------------------------------------------------------------------------
const visit = /** @type {PerformanceNavigationTiming} */ (
  performance.getEntriesByType("navigation")[0]
);
for (const control of document.querySelectorAll("[data-submits]")) {
  control.addEventListener("change", () => control.form.requestSubmit());
  // Chosen before this script was there. On a page that is gone back to or loaded anew it is the
  // browser that has filled in what was chosen last.
  if (visit?.type === "navigate" && isChosen(control)) control.form.requestSubmit();
}

/**
 * Whether a field differs from what the page came with.
 * @param {Element} control
 */
function isChosen(control) {
  if (control instanceof HTMLInputElement) return control.value !== control.defaultValue;
  if (!(control instanceof HTMLSelectElement)) return false;
  const first = [...control.options].findIndex((option) => option.defaultSelected);
  return control.selectedIndex !== Math.max(0, first);
}

document.addEventListener("submit", (event) => {
  if (event.target.matches("[action='/logout']")) dropAllDrafts();
  // A pressed button is busy, not gone.
  const button = event.submitter;
  if (event.target.method === "post" && button) button.setAttribute("aria-busy", "true");
});

addEventListener("pageshow", () => {
  // also when the browser comes back to a page it had kept
  for (const button of document.querySelectorAll("button[aria-busy]"))
    button.removeAttribute("aria-busy");
});

document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});

const keys = /** @type {HTMLDialogElement} */ (document.getElementById("keys"));
for (const button of document.querySelectorAll("[data-show-keys]")) {
  button.addEventListener("click", () => keys.showModal());
}

// ---- keys -------------------------------------------------------------------------------------
/** @param {number} by */
function step(by) {
  const links = [
    ...document.querySelectorAll("table.jobs tbody th a.name, table.jobs tbody th .name[tabindex]"),
  ];
  if (!links.length) return;
  const at = links.indexOf(/** @type {PageElement} */ (document.activeElement));
  links[Math.max(0, Math.min(links.length - 1, at < 0 ? 0 : at + by))].focus();
}

/** @type {Record<string, () => void>} */
const ACTIONS = {
  "/": () => {
    const search = document.querySelector("[data-search]");
    const tab = search?.closest("[data-tab]");
    if (tab && !search.checkVisibility()) location.hash = tab.id;
    search?.focus();
  },
  n: () => {
    if (keys) location.href = "/jobs/new#f-name";
  },
  j: () => step(1),
  k: () => step(-1),
  x: () => document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]")?.click(),
  c: () => document.querySelector("[data-compare]:not([disabled])")?.click(),
  e: () => document.querySelector("[data-log-error]")?.click(),
  f: () => document.querySelector("[data-log-follow]")?.click(),
  "?": () => keys?.showModal(),
};

document.addEventListener("keydown", (event) => {
  const field = event.target.closest(
    "input:not([type=checkbox]):not([type=range]), textarea, select",
  );
  if (event.key === "Escape") {
    const menu = document.querySelector("details.menu[open]");
    if (menu) {
      menu.open = false;
      menu.querySelector("summary").focus();
    } else if (field) {
      field.blur();
    }
    return;
  }
  if (
    field ||
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    document.querySelector("dialog[open]")
  )
    return;
  const action = ACTIONS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});
