// A chosen file is put into the form, name and text, so that it is seen before it is sent.

/** @type {HTMLInputElement} */
const chooser = document.querySelector("[data-program-file]");
/** @type {HTMLInputElement} */
const name = document.querySelector("[data-program-name]");
/** @type {HTMLTextAreaElement} */
const text = document.querySelector("[data-program-text]");

chooser.addEventListener("change", async () => {
  const [file] = chooser.files;
  if (!file) return;
  name.value = file.name;
  text.value = await file.text();
});
