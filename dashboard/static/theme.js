// Loaded before the first paint: the chosen theme, or the system's.
const chosenTheme = localStorage.getItem("theme");
if (chosenTheme === "light" || chosenTheme === "dark") {
  document.documentElement.dataset.theme = chosenTheme;
}
