// Buttons that copy what stands before them: ids, secrets, links, hashes.
const SHOWN_MS = 1500;

/** @param {(sentence: string) => void} announce */
export function letCopy(announce) {
  if (!navigator.clipboard) return; // a page over plain HTTP from another machine has none
  document.documentElement.dataset.canCopy = "";
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = /** @type {PageElement} */ (button.previousElementSibling);
    await navigator.clipboard.writeText(source.value ?? source.textContent.trim());
    button.textContent = "Copied";
    announce(`Copied ${button.dataset.copy}.`);
    setTimeout(() => {
      button.textContent = "Copy";
    }, SHOWN_MS);
  });
}
