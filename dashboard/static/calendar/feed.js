// The address from which a calendar program reads the viewer's leases.
import { ask } from "../api.js";
import { find, make, say } from "../elements.js";
import { asked } from "../looks.js";

// A calendar program subscribes to the link; whoever has it can read it, and it is shown this once.
find("feed").addEventListener("click", async (event) => {
  const place = find("feed-answer");
  event.target.setAttribute("aria-busy", "true");
  try {
    const { url } = await asked(() => ask("/v1/calendars", { method: "POST", body: {} }));
    say(place, "good", "Subscribe to this address. It is shown only once", [
      "It lists your leases. Anyone who has the address can read them.",
    ]);
    place.firstElementChild.lastElementChild.append(
      make("input", {
        class: "input mono",
        readonly: "",
        "aria-label": "Calendar address",
        value: url,
      }),
    );
  } catch (error) {
    say(place, "bad", "No link was created", [error.message]);
  } finally {
    event.target.removeAttribute("aria-busy");
  }
});
