// The button names the number of leases that it removes, and waits until the rows were read. The
// start is sent with the browser's offset.
const form = document.querySelector("[data-cleanup]");
const remove = form?.querySelector("[data-remove]");

function tell() {
  const chosen = form.querySelectorAll("[data-row]:checked").length;
  form.querySelector("[data-count]").textContent = chosen === 1 ? "1 lease" : `${chosen} leases`;
  remove.disabled = !chosen || !form.querySelector("[data-read]").checked;
}

const preview = document.querySelector("[data-preview]");
preview.addEventListener("submit", () => {
  const local = preview.querySelector("[name=starts_from]").value;
  const exact = preview.querySelector("[name=starts_with_offset]");
  exact.value = local ? new Date(local).toISOString() : "";
});

if (remove) {
  form.addEventListener("change", tell);
  tell();
}
