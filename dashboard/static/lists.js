// A page that shows lists: it is told when one of them reads differently, and reads it again; at once,
// and then every few seconds at most, for what runs changes its list all the time.
import { Live } from "./live.js";

/* global htmx */

const REST_MS = 4000;

export function follow(names, read) {
  let drawn = "";
  let isDue = false;
  let resting = null;
  const soon = () => {
    isDue = true;
    if (resting !== null) return;
    isDue = false;
    read();
    resting = setTimeout(() => {
      resting = null;
      if (isDue) soon();
    }, REST_MS);
  };
  const changes = ({ words }) => {
    const now = JSON.stringify(words);
    if (now === drawn) return;
    drawn = now;
    soon();
  };
  const asked = names.map((name) => `list=${name}`).join("&");
  new Live(`/v1/changes/stream?${asked}`, { on: { changes } });
}

// A list that the server draws says of itself what it shows.
const list = document.querySelector("[data-lists]");
if (list) follow(list.dataset.lists.split(" "), () => htmx.trigger(document.getElementById(list.id), "refresh"));
