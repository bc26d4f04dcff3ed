// The tabs of a job's page. The style sheet shows the parts of the tab in which the target of the
// address lies, so a link to anything on the page opens its tab; here the tab is only marked.
const tabs = document.querySelector("[data-job-tabs]");

// Tell which tab is open.
function mark() {
  const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
  const part = target?.closest("[data-tab]");
  const name = part?.dataset.tab.split(" ").at(-1) ?? "overview";
  for (const link of tabs.querySelectorAll("a")) {
    const isOpen = link.getAttribute("href") === (name === "overview" ? "#head" : `#${name}`);
    if (isOpen) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/**
 * Open the tab in which an element lies; nothing changes while it is in sight.
 * @param {Element} element
 */
export function openTabOf(element) {
  if (element.checkVisibility()) return;
  location.hash = element.closest("[data-tab]").id;
}

addEventListener("hashchange", mark);
mark();
