// Bands and windows of the coming weeks, and the expected demand before a window closes.
import { ask } from "../api.js";
import { find, make } from "../elements.js";
import { clock, day } from "../times.js";
import { blockWords, hoursOf } from "./hours.js";
import { days, iso, shown } from "./shown.js";

/** @import { ForecastView, SpanView } from "trainyard-api" */

/** @param {SpanView} one */
const spanOf = (one) => ({
  name: one.name,
  from: Date.parse(one.starts_at),
  to: Date.parse(one.ends_at),
});

/** @param {string} at */
const moment = (at) => `${day(new Date(at))}, ${clock(new Date(at))}`;

/**
 * Read the bands and windows of the shown week.
 * @param {Way} [way]
 */
export async function readBands(way = {}) {
  const hours = days().flatMap(hoursOf);
  const { data } = await ask(
    `/v1/bands?start=${encodeURIComponent(iso(hours[0]))}&hours=${hours.length}`,
    way,
  );
  shown.shapes = data.map((one) => ({
    ...one,
    bands: one.bands.map(spanOf),
    windows: one.windows?.map(spanOf) ?? null,
  }));
}

/**
 * Read the windows of all policies, and list them.
 * @param {Way} way
 */
export async function readWindows(way) {
  const { data } = await ask("/v1/windows", way);
  const open = data
    .filter((one) => Date.parse(one.ends_at) > Date.now())
    .sort((a, b) => Date.parse(a.starts_at) - Date.parse(b.starts_at));
  find("windows-card").hidden = !open.length;
  find("windows").replaceChildren(
    ...open.map((one) => {
      const opens =
        one.opens_at && Date.parse(one.opens_at) > Date.now()
          ? `; booking opens ${moment(one.opens_at)}`
          : "";
      const row = make("li");
      row.append(
        make("strong", { text: one.pools.join(", ") }),
        make("div", {
          class: "sub",
          text: `${blockWords(Date.parse(one.starts_at), Date.parse(one.ends_at))}${opens}`,
        }),
      );
      return row;
    }),
  );
}

/**
 * Read and show the expected demand before a window closes.
 * @param {Way} way
 */
export async function readForecast(way) {
  const { data } = await ask("/v1/leases/forecast", way);
  find("forecast-card").hidden = !data.length;
  find("forecast").replaceChildren(
    ...data.flatMap((one) => [
      make("p", { text: `${data.length > 1 ? `${one.policy}: ` : ""}${one.message}` }),
      forecastDays(one),
      make("p", {
        class: "sub",
        text: `The window closes ${moment(one.closes_at)}. ${allowance(one.people)}`,
      }),
    ]),
  );
}

/** @param {number} people */
function allowance(people) {
  const whose = people === 1 ? "1 person" : `${people} people`;
  return `This is the most that quotas of ${whose} allow; fewer hours may be booked.`;
}

/** @param {ForecastView} one */
function forecastDays(one) {
  const list = make("ol", { class: "forecast" });
  list.append(
    ...one.days.map((each) => {
      const share = each.free_hours ? Math.round((100 * each.wanted_hours) / each.free_hours) : 100;
      const row = make("li");
      const bar = make("div", { class: "bar", "aria-hidden": "true" });
      bar.append(make("i", {}, { v: share }));
      row.append(
        make("span", { text: day(new Date(each.start)) }),
        bar,
        make("span", {
          class: "num",
          text: `${Math.round(each.wanted_hours)} of ${Math.round(each.free_hours)} h`,
        }),
      );
      return row;
    }),
  );
  return list;
}
