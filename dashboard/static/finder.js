// Search from every page: Ctrl K opens it, what is typed is looked for, arrows and Enter go there.
const finder = /** @type {HTMLDialogElement | null} */ (document.getElementById("finder"));
const input = /** @type {HTMLInputElement | null} */ (finder?.querySelector("[type=search]"));

/** @param {number} by */
function step(by) {
  const links = [...finder.querySelectorAll("a")];
  const at = links.indexOf(/** @type {HTMLAnchorElement} */ (document.activeElement));
  if (at + by < 0) input.focus();
  else links[Math.min(links.length - 1, at + by)]?.focus();
}

export function openFinder() {
  if (!finder || document.querySelector("dialog[open]")) return;
  finder.showModal();
  input.select();
}

addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    openFinder();
  }
});

finder?.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    // Else a browser empties the field first, and the dialog stays.
    event.preventDefault();
    event.stopPropagation();
    finder.close();
    return;
  }
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  event.preventDefault();
  step(event.key === "ArrowDown" ? 1 : -1);
});
finder?.addEventListener("click", (event) => {
  if (event.target === finder) finder.close();
});
finder?.querySelector("form").addEventListener("submit", (event) => {
  const first = finder.querySelector("a");
  if (!first) return; // the page of the search says so
  event.preventDefault();
  first.click();
});
for (const button of document.querySelectorAll("[data-find]")) {
  button.addEventListener("click", openFinder);
}
