// How a log is shown: times, wrapping, folded lines of frameworks, full screen; and its copy. The
// choices are kept in this browser.
import { count } from "../formats.js";
import { announce } from "../page.js";

const KEPT = "log-view";
/** @type {Record<string, boolean>} */
const USUAL = { times: false, wrap: false, fold: true };

/**
 * @param {HTMLElement} card
 * @param {HTMLElement} box
 */
export function letView(card, box) {
  /** @type {Record<string, boolean>} */
  const chosen = { ...USUAL, ...JSON.parse(localStorage.getItem(KEPT) ?? "{}") };
  const show = () => {
    for (const [name, isOn] of Object.entries(chosen)) box.classList.toggle(name, isOn);
  };
  for (const input of card.querySelectorAll("[data-log-show]")) {
    input.checked = chosen[input.dataset.logShow];
    input.addEventListener("change", () => {
      chosen[input.dataset.logShow] = input.checked;
      localStorage.setItem(KEPT, JSON.stringify(chosen));
      show();
    });
  }
  show();

  box.addEventListener("click", (event) => {
    const button = event.target.closest(".fold button");
    if (button) unfold(button);
  });

  const full = card.querySelector("[data-log-full]");
  /** @param {boolean} isFull */
  const fill = (isFull) => {
    card.classList.toggle("full", isFull);
    full.setAttribute("aria-pressed", String(isFull));
    full.textContent = isFull ? "Leave full screen" : "Full screen";
    full.closest("details").open = false;
    box.focus();
  };
  full.addEventListener("click", () => fill(!card.classList.contains("full")));
  card.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target === box && card.classList.contains("full"))
      fill(false);
  });

  card.querySelector("[data-log-copy]").addEventListener("click", async (event) => {
    const rows = [...box.querySelectorAll("li[data-line]")];
    const text = rows.map((row) => row.lastElementChild.textContent).join("\n");
    await navigator.clipboard.writeText(text);
    event.target.closest("details").open = false;
    announce(`Copied ${count(rows.length)} lines.`);
  });
}

/** @param {HTMLElement} button */
function unfold(button) {
  const isOpen = button.getAttribute("aria-expanded") === "false";
  button.setAttribute("aria-expanded", String(isOpen));
  let row = button.closest("li").nextElementSibling;
  while (row?.classList.contains("noise")) {
    row.classList.toggle("shown", isOpen);
    row = row.nextElementSibling;
  }
}
