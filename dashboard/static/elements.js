// Finding and making the elements of a page.
import { inZone } from "./times.js";

/**
 * @template {Element} [Found=PageElement]
 * @param {string} name
 * @returns {Found | null}
 */
export const find = (name) => document.querySelector(`[data-${name}]`);

/**
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} tag
 * @param {Record<string, string | number>} [attributes]
 * @param {Record<string, number>} [position]
 * @returns {HTMLElementTagNameMap[Name]}
 */
export function make(tag, { text, ...attributes } = {}, position = {}) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  for (const [name, value] of Object.entries(position))
    element.style.setProperty(`--${name}`, String(value));
  if (text !== undefined) element.textContent = String(text);
  return element;
}

/**
 * An answer, in the place that is for it.
 * @param {Element} place
 * @param {string} state
 * @param {string} headline
 * @param {string[]} sentences
 */
export function say(place, state, headline, sentences) {
  const box = make("div", { class: "verdict", "data-state": state });
  const inner = make("div");
  inner.append(
    make("strong", { text: headline }),
    ...sentences.map((text) => make("p", { text: inZone(text) })),
  );
  box.append(inner);
  place.replaceChildren(box);
}
