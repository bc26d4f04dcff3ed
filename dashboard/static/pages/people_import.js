// A chosen CSV file is put into the text field, so that it is seen before it is sent.

/** @type {HTMLInputElement} */
const chooser = document.querySelector("[data-list-file]");
/** @type {HTMLTextAreaElement} */
const list = document.querySelector("[data-list]");

chooser.addEventListener("change", async () => {
  const [file] = chooser.files;
  if (file) list.value = await file.text();
});
