// The form for a new job: Ctrl Enter submits, and the button waits for the plan of the newest text.
const text = document.querySelector("[data-spec]");
const line = document.getElementById("spec-line");

function tellLine() {
  const before = text.value.slice(0, text.selectionStart).split("\n");
  const all = text.value.split("\n").length;
  line.textContent = `Line ${before.length} of ${all}. Sent as it is, comments too. No aliases, no tags.`;
}

text.addEventListener("keyup", tellLine);
text.addEventListener("click", tellLine);
text.addEventListener("input", () => {
  // The old answer stays, dimmed, and can't be submitted until the new one is there.
  document.querySelector("[data-submit]").disabled = true;
  document.getElementById("plan").classList.add("old");
  tellLine();
});
document.addEventListener("htmx:after:swap", () => document.getElementById("plan").classList.remove("old"));
text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  const button = document.querySelector("[data-submit]");
  if (!button.disabled) text.form.requestSubmit(button);
});
