// The old answer can't be applied while the new text has no answer.
const text = document.querySelector("[data-policy]");
const plan = document.getElementById("policy-plan");

text.addEventListener("input", () => {
  plan.classList.add("old");
  const button = plan.querySelector("[data-apply-policy]");
  if (button) button.disabled = true;
});
document.addEventListener("htmx:after:swap", () => plan.classList.remove("old"));
