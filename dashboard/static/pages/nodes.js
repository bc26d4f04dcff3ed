// Search among many nodes; the filter stays when the rows are read again.
const search = document.querySelector("[data-filter]");
const buttons = document.querySelectorAll("[data-filter-class]");
let chosen = "";

function filter() {
  const words = (search?.value ?? "").trim().toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll("#rows tr")) {
    const isWanted =
      (!chosen || row.dataset.class === chosen) &&
      words.every((word) => row.dataset.words.includes(word));
    row.hidden = !isWanted;
  }
}

search?.addEventListener("input", filter);
for (const button of buttons) {
  button.addEventListener("click", () => {
    chosen = button.dataset.filterClass;
    for (const one of buttons) one.setAttribute("aria-pressed", String(one === button));
    filter();
  });
}

/**
 * An open menu stays open, too.
 * @type {string}
 */
let open = null; // id of its row
document.addEventListener("click", (event) => {
  const menu = event.target.closest("#rows details");
  if (event.target.closest("#rows summary")) open = menu.open ? null : menu.closest("tr").id;
  else if (!menu) open = null;
});
document.addEventListener("htmx:after:swap", () => {
  filter();
  const menu = open && document.getElementById(open)?.querySelector("details");
  if (menu) menu.open = true;
});
