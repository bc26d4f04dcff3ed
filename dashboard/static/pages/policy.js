// The old answer can't be applied while a new text waits for its own.
const text = document.querySelector("[data-policy]");
const plan = document.getElementById("policy-plan");

text.addEventListener("input", () => {
  plan.classList.add("old");
  const button = plan.querySelector("[data-apply-policy]");
  if (button) button.disabled = true;
});
document.addEventListener("htmx:after:swap", () => plan.classList.remove("old"));
