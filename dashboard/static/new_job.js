// The form for a new job: fields and YAML are two views of one spec. The YAML is what is sent; a
// changed field is written into it by the server, and the fields are read out of it when they are
// shown. Ctrl Enter submits, and the button waits for the plan of the newest text.
const text = document.querySelector("[data-spec]");
const line = document.getElementById("spec-line");
const plan = document.getElementById("plan");
const form = document.getElementById("spec-form");
const fields = document.getElementById("spec-fields");
const yaml = document.querySelector("[data-yaml]");
const source = document.querySelector("[data-source]");
const change = document.querySelector("[data-apply-change]");
const views = document.querySelectorAll("[data-view]");

function tellLine() {
  const before = text.value.slice(0, text.selectionStart).split("\n");
  const all = text.value.split("\n").length;
  line.textContent = `Line ${before.length} of ${all}. Sent as it is, comments too. No aliases, no tags.`;
}

// The old answer stays, dimmed, and can't be submitted until the new one is there.
function growOld() {
  document.querySelector("[data-submit]").disabled = true;
  plan.classList.add("old");
}

// ---- two views ----------------------------------------------------------------------------------
function show(view) {
  const isForm = view === "form";
  fields.hidden = !isForm;
  yaml.hidden = isForm;
  for (const one of views) {
    one.setAttribute("aria-pressed", String(one.dataset.view === view));
  }
}

async function readFields() {
  const answer = await fetch("/jobs/new/fields", { method: "POST", headers: { "Content-Type": "application/x-www-form-urlencoded", "HX-Request": "true" }, body: new URLSearchParams({ spec: text.value }) });
  if (!answer.ok) return;
  fields.innerHTML = await answer.text(); // our own server's, escaped there like every page
  tellErrors();
}

let wantedView = "";
for (const button of views) {
  button.addEventListener("click", async () => {
    wantedView = button.dataset.view;
    if (button.dataset.view === "form") await readFields();
    if (wantedView !== button.dataset.view) return; // the other one was asked for meanwhile
    show(button.dataset.view);
    localStorage.setItem("spec-view", button.dataset.view);
  });
}

// What is wrong, beside the field that it is about.
function tellErrors() {
  for (const error of fields.querySelectorAll("[data-error]")) {
    const path = error.dataset.error;
    const found = [...plan.querySelectorAll("[data-param]")].find((one) => one.dataset.param === path);
    error.hidden = !found;
    error.textContent = found?.querySelector("bdi").textContent ?? "";
    const control = fields.querySelector(`[data-field="${path}"]`);
    if (found) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  }
}

fields.addEventListener("input", () => {
  source.value = "form";
  growOld();
  text.dispatchEvent(new Event("replan"));
});

text.addEventListener("keyup", tellLine);
text.addEventListener("click", tellLine);
text.addEventListener("input", () => {
  source.value = "yaml";
  growOld();
  tellLine();
});

// ---- the plan -----------------------------------------------------------------------------------
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-apply]");
  if (!button) return;
  change.value = button.dataset.apply;
  source.value = fields.hidden ? "yaml" : "form";
  growOld();
  button.setAttribute("aria-busy", "true");
  text.dispatchEvent(new Event("replan"));
});

document.addEventListener("htmx:after:swap", async () => {
  plan.classList.remove("old");
  const rewritten = plan.querySelector("[data-rewritten]");
  if (rewritten) {
    text.value = rewritten.value;
    rewritten.remove();
    tellLine();
    if (change.value && !fields.hidden) await readFields();
  }
  change.value = "";
  tellErrors();
});

function submit(event) {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  const button = document.querySelector("[data-submit]");
  if (!button.disabled) form.requestSubmit(button);
}
form.addEventListener("keydown", submit);
// Enter in a field submits nothing: the plan comes first.
fields.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.ctrlKey && !event.metaKey && event.target.matches("input")) event.preventDefault(); });

document.querySelector("[data-views]").hidden = false;
show(localStorage.getItem("spec-view") === "yaml" ? "yaml" : "form");
