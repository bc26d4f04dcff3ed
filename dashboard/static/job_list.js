// Selecting rows of the list; the selection survives when the rows are read again.
const bulk = document.getElementById("bulk");
const boxes = () => [...document.querySelectorAll("#rows input[type=checkbox]")];

function tell() {
  const chosen = boxes().filter((box) => box.checked);
  const jobs = chosen.length === 1 ? "1 job" : `${chosen.length} jobs`;
  bulk.hidden = chosen.length === 0;
  bulk.querySelector("[data-bulk-count]").textContent = `${chosen.length} selected`;
  bulk.querySelectorAll("[data-bulk-jobs]").forEach((element) => { element.textContent = jobs; });
  boxes().forEach((box) => box.closest("tr").setAttribute("aria-selected", String(box.checked)));
}

document.addEventListener("change", (event) => {
  if (event.target.closest("#rows")) tell();
});
document.addEventListener("htmx:after:swap", tell);
bulk.querySelector("[data-bulk-clear]").addEventListener("click", () => {
  boxes().forEach((box) => { box.checked = false; });
  tell();
});
tell();
