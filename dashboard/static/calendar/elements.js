// Elements of the calendar page: those that are there, and those that are made.
export const find = (name) => document.querySelector(`[data-${name}]`);

export function make(tag, { text, ...attributes } = {}, position = {}) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  for (const [name, value] of Object.entries(position))
    element.style.setProperty(`--${name}`, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// An answer, in the place that is for it.
export function say(place, state, headline, sentences) {
  const box = make("div", { class: "verdict", "data-state": state });
  const inner = make("div");
  inner.append(make("strong", { text: headline }), ...sentences.map((text) => make("p", { text })));
  box.append(inner);
  place.replaceChildren(box);
}
