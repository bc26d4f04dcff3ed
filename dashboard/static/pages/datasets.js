// Uploads go straight to the API, which streams them to disk and says what is wrong, with the line.
const TYPES = {
  text: "text/plain; charset=utf-8",
  jsonl: "application/x-ndjson",
  npz: "application/octet-stream",
};
const form = document.querySelector("[data-upload]");
const answer = form.querySelector("[data-upload-answer]");
const bar = form.querySelector("[data-upload-bar]");

function say(headline, detail) {
  const verdict = document.createElement("div");
  verdict.className = "verdict";
  verdict.dataset.state = "bad";
  const inner = document.createElement("div");
  const strong = document.createElement("strong");
  strong.textContent = headline;
  const paragraph = document.createElement("p");
  paragraph.textContent = detail;
  inner.append(strong, paragraph);
  verdict.append(inner);
  answer.replaceChildren(verdict);
}

form.elements.file.addEventListener("change", () => {
  const [file] = form.elements.file.files;
  if (!file) return;
  const [, ending] = /\.(\w+)$/.exec(file.name.toLowerCase()) ?? [];
  form.elements.format.value = { jsonl: "jsonl", ndjson: "jsonl", npz: "npz" }[ending] ?? "text";
  form.elements.name.value ||= file.name
    .replace(/\.[^.]*$/, "")
    .replace(/[^A-Za-z0-9._ -]+/g, "-")
    .replace(/^[^A-Za-z0-9]+/, "")
    .slice(0, 63);
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const [file] = form.elements.file.files;
  const button = form.querySelector("button[type=submit]");
  const query = new URLSearchParams({
    name: form.elements.name.value,
    format: form.elements.format.value,
  });
  const request = new XMLHttpRequest(); // fetch tells nothing about how far an upload is
  request.open("POST", `/v1/datasets?${query}`);
  request.setRequestHeader("Content-Type", TYPES[form.elements.format.value]);
  request.upload.onprogress = ({ loaded, total }) => {
    const percent = total ? (100 * loaded) / total : 0;
    bar.setAttribute("aria-valuenow", Math.floor(percent));
    bar.firstElementChild.style.setProperty("--v", percent);
  };
  request.onloadend = () => {
    button.disabled = false;
    button.removeAttribute("aria-busy");
    bar.hidden = true;
    if (request.status >= 200 && request.status < 300) {
      location.reload();
    } else if (!request.status) {
      say("Not uploaded", "The server can't be reached. Nothing was kept; try again.");
    } else {
      const problem = request.getResponseHeader("content-type")?.includes("json")
        ? JSON.parse(request.responseText)
        : {};
      say(problem.title ?? "Not uploaded", problem.detail ?? `The API answered ${request.status}.`);
    }
  };
  answer.replaceChildren();
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  bar.hidden = false;
  request.send(file);
});
