// A chosen CSV file is put into the text field, so that it is seen before it is sent.
import { whenChosen } from "../chosen.js";

/** @type {HTMLInputElement} */
const chooser = document.querySelector("[data-list-file]");
/** @type {HTMLTextAreaElement} */
const list = document.querySelector("[data-list]");

whenChosen(chooser, async ([file]) => {
  list.value = await file.text();
});
