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
 * What is open stays open: ids of details. Of the menus, a click elsewhere closes one.
 * @type {Set<string>}
 */
const open = new Set();
document.addEventListener("click", (event) => {
  const clicked = event.target.closest("#rows details");
  for (const menu of document.querySelectorAll("#rows details.menu"))
    if (menu !== clicked) open.delete(menu.id);
  if (!event.target.closest("#rows summary")) return;
  if (clicked.open) open.delete(clicked.id);
  else open.add(clicked.id);
});
filter(); // for words that were typed before this script was there
document.addEventListener("htmx:after:swap", () => {
  filter();
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
});
