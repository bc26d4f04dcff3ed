// A plan that the server draws beside a text with every change: where it can't answer, the old plan
// stays, the page says so (`data-plan-lost`), and the server is asked again.

const AGAIN_MS = 3000;

/**
 * @param {HTMLElement} text which asks for the plan, also upon the event `replan`
 * @param {() => void} replan
 * @returns {() => void} what tells that the server is lost
 */
export function askAgain(text, replan) {
  const lost = document.querySelector("[data-plan-lost]");
  let again = 0;
  const tellLost = () => {
    lost.hidden = false;
    clearTimeout(again);
    again = setTimeout(replan, AGAIN_MS);
  };
  text.addEventListener("htmx:error", tellLost);
  text.addEventListener("htmx:before:swap", (event) => {
    if (/** @type {CustomEvent} */ (event).detail.ctx.response.status < 500) return;
    event.preventDefault();
    tellLost();
  });
  document.addEventListener("htmx:after:swap", () => {
    lost.hidden = true;
    clearTimeout(again);
  });
  return tellLost;
}
