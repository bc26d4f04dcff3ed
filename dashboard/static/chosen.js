// Files that a visitor chooses, also those chosen before the page's script was there.

/**
 * Call `take` with the files of each choice.
 * @param {HTMLInputElement} chooser
 * @param {(files: File[]) => unknown} take
 */
export function whenChosen(chooser, take) {
  const tell = () => {
    if (chooser.files.length) take([...chooser.files]);
  };
  chooser.addEventListener("change", tell);
  tell();
}
