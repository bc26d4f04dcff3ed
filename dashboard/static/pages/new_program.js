// Chosen files are put into the form, names and texts, so that they are seen before they are sent:
// the first program into its own fields, the others into a list beside it.
import { whenChosen } from "../chosen.js";

/** @type {NodeListOf<HTMLInputElement>} */
const choosers = document.querySelectorAll("[data-program-file]");
/** @type {HTMLInputElement} */
const name = document.querySelector("[data-program-name]");
/** @type {HTMLTextAreaElement} */
const text = document.querySelector("[data-program-text]");
/** @type {HTMLTemplateElement} */
const row = document.querySelector("[data-program-row]");
/** @type {HTMLElement} */
const beside = document.querySelector("[data-program-beside]");
/** @type {HTMLElement} */
const told = document.querySelector("[data-program-told]");

const USUAL = ["main.py", "train.py"];
const SKIPPED = /(^|\/)(\.|__pycache__\/|node_modules\/)/;

/**
 * Return a file's path in the program; of a chosen folder that is the path below it.
 * @param {File} file
 */
function pathOf(file) {
  return file.webkitRelativePath.split("/").slice(1).join("/") || file.name;
}

/**
 * Return the path that is most likely the one to run.
 * @param {string[]} paths
 */
function entryOf(paths) {
  const top = paths.filter((path) => !path.includes("/"));
  return (
    USUAL.find((usual) => top.includes(usual)) ?? top.find((path) => path.endsWith(".py")) ?? top[0]
  );
}

/**
 * Show a file in the list; one with the same path gives way.
 * @param {string} path
 * @param {string} content
 */
function put(path, content) {
  for (const old of beside.querySelectorAll("li")) {
    if (old.querySelector("input").value === path) old.remove();
  }
  const made = /** @type {DocumentFragment} */ (row.content.cloneNode(true));
  made.querySelector("bdi").textContent = path;
  made.querySelector("span").textContent = `${content.length.toLocaleString("en-US")} characters`;
  made.querySelector("input").value = path;
  made.querySelector("textarea").value = content;
  beside.append(made);
}

for (const chooser of choosers) {
  whenChosen(chooser, async (chosen) => {
    const files = chosen.filter((file) => !SKIPPED.test(pathOf(file)));
    const contents = await Promise.all(files.map((file) => file.text()));
    const isText = contents.map((content) => !content.includes("\0"));
    const left = files.filter((_, at) => !isText[at]).map(pathOf);
    told.textContent = left.length
      ? `Left out, because they are not text: ${left.join(", ")}. The command line sends any file.`
      : "";
    const texts = new Map(files.map((file, at) => [pathOf(file), contents[at]]));
    for (const path of left) texts.delete(path);
    const entry = entryOf([...texts.keys()]);
    for (const [path, content] of texts) {
      if (path !== entry) put(path, content);
    }
    if (entry !== undefined) {
      name.value = entry;
      text.value = texts.get(entry);
    }
    chooser.value = "";
  });
}

beside.addEventListener("click", (event) => {
  const pressed = /** @type {HTMLElement} */ (event.target).closest("button");
  pressed?.closest("li").remove();
});
