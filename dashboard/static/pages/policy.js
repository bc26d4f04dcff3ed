import { askAgain } from "../replan.js";

// Line numbers beside the document, as messages name them. The old answer can't be applied while the
// new text has no answer.
const text = document.querySelector("[data-policy]");
const plan = document.getElementById("policy-plan");
const numbers = document.querySelector(".line-numbers");

function number() {
  const lines = text.value.split("\n").length;
  numbers.textContent = Array.from({ length: lines }, (_, index) => index + 1).join("\n");
  numbers.scrollTop = text.scrollTop;
}

text.addEventListener("input", number);
text.addEventListener("scroll", () => {
  numbers.scrollTop = text.scrollTop;
});
number();

text.addEventListener("input", () => {
  plan.classList.add("old");
  const button = plan.querySelector("[data-apply-policy]");
  if (button) button.disabled = true;
});
document.addEventListener("htmx:after:swap", () => plan.classList.remove("old"));
askAgain(text, () => text.dispatchEvent(new Event("replan")));
