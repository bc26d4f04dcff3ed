// The button names the number of leases that it removes, and waits until the rows were read.
const form = document.querySelector("[data-cleanup]");
const remove = form?.querySelector("[data-remove]");

function tell() {
  const chosen = form.querySelectorAll("[data-row]:checked").length;
  form.querySelector("[data-count]").textContent = chosen === 1 ? "1 lease" : `${chosen} leases`;
  remove.disabled = !chosen || !form.querySelector("[data-read]").checked;
}

if (remove) {
  form.addEventListener("change", tell);
  tell();
}
