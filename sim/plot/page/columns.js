// What the page's data mean, without drawing anything: columns of bars, their lanes, and what is read at each.
"use strict";

/** A column as it stands in the file: a number stands for a column of equal ones. */
const column = (packed, n) => typeof packed === "number" ? new Float64Array(n).fill(packed) : Float64Array.from(packed);

/** Unpack the columns of bars: starts are differences; ends and waits follow. */
function unpack(packed) {
  const n = packed.n, bars = { n };
  for (const [name, values] of Object.entries(packed)) if (name !== "n") bars[name] = column(values, n);
  for (let k = 1; k < n; k++) bars.start[k] += bars.start[k - 1];
  bars.end = bars.start.map((start, k) => start + bars.lasted[k]);
  return bars;
}

/** The bars of each level of each lane, in order of start; they do not overlap, but for those that stand for many. */
function lanesOf(bars) {
  const found = new Map();
  for (let k = 0; k < bars.n; k++) {
    if (bars.end[k] <= bars.start[k]) continue;
    const key = bars.lane[k] * 4096 + bars.level[k];
    if (!found.has(key)) found.set(key, { lane: bars.lane[k], level: bars.level[k], levels: bars.levels[k], bars: [] });
    found.get(key).bars.push(k);
  }
  for (const lane of found.values()) {
    lane.bars.sort((a, b) => bars.start[a] - bars.start[b]);
    let latest = 0;
    lane.ends = lane.bars.map(k => latest = Math.max(latest, bars.end[k]));
  }
  return [...found.values()];
}

/** Position of the first of some rising numbers that is at least `value`. */
function firstAtLeast(rising, value) {
  let low = 0, high = rising.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rising[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

/** A time with all its digits. */
function exact(ns) {
  const [unit, word] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"]].find(([each]) => ns >= each) || [1, "ns"];
  const digits = unit > 1 ? String(ns % unit).padStart(String(unit).length - 1, "0").replace(/0+$/, "") : "";
  return Math.floor(ns / unit) + (digits ? "." + digits : "") + " " + word;
}

/** Bytes in a unit that reads well. */
function bytes(n) {
  const [unit, word] = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([each]) => n >= each) || [1, "B"];
  return +(n / unit).toPrecision(4) + " " + word;
}

/** What is read at bar k of a row, line by line. */
function story(page, row, k) {
  const b = row.bars, label = page.kinds[b.entry[k]].label, lane = row.lane_names[b.lane[k]];
  const span = `start ${exact(b.start[k])} · end ${exact(b.end[k])} · lasted ${exact(b.lasted[k])}`;
  if (b.name[k] === -2)   // it has its place in a column of the picture, and no times of its own
    return [`several (${label})`, lane, `${exact(b.lasted[k])} together, each too short to be seen`];
  if (b.name[k] === -1) return [label, lane, span];
  const frame = row.frames[b.frame[k]];
  const lines = [`${page.names[b.name[k]]}${frame ? " in " + frame : ""} (${label})`, row.repeated ? `${lane} · iteration ${b.iteration[k]}` : lane];
  const ready = `ready ${exact(b.start[k] - b.ready[k])}`;
  if (b.nbytes[k] >= 0) return [...lines, `${bytes(b.nbytes[k])} · ${ready}`, span];
  lines.push(`${ready} · issued ${exact(b.start[k] - b.issued[k])}`, span);
  const waited = b.ready[k] - b.met[k], why = page.reasons[b.reason[k]];
  if (waited) lines.push(`waited ${exact(waited)}` + (why ? ` for: ${why}` : ""));
  if (b.status[k]) lines.push(page.statuses[b.status[k]]);
  return lines;
}

/** What may stand for a name in its bar: without its device, then what follows a slash, but no bare number. */
function forms(name, lane) {
  const device = lane.slice(0, Math.max(0, lane.lastIndexOf("/"))) + "/";
  const own = device.length > 1 && name.startsWith(device) ? name.slice(device.length) || name : name, parts = own.split("/");
  const rests = parts.slice(1).map((_, k) => parts.slice(k + 1).join("/"));
  return [own, ...rests.filter(rest => rest && !/^\d+$/.test(rest))];
}

/** What may stand in bar k of a row: forms of its name, at last its micro-batch. */
function textsOf(page, row, k) {
  const b = row.bars, slot = b.slot[k] < 0 ? [] : [String(b.slot[k])];
  return b.name[k] < 0 ? [] : forms(page.names[b.name[k]], row.lane_names[b.lane[k]]).concat(slot);
}

/** The first text that has room, and how large it is: smaller letters before none. `width` is that of a text at size 1. */
function written(texts, width, room, largest) {
  for (const size of largest < SMALLEST ? [] : [largest, SMALLEST]) {
    const found = texts.find(text => width(text) * size <= room);
    if (found) return [found, size];
  }
  return ["", 0];
}
const SMALLEST = 7;   // pixels

/** Which bars have all words of a filter in what they are called. */
function matching(page, row, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(word => word), b = row.bars;
  return Uint8Array.from({ length: b.n }, (_, k) => {
    if (!words.length) return 1;
    const text = [page.names[b.name[k]], page.kinds[b.entry[k]].label, row.lane_names[b.lane[k]], page.reasons[b.reason[k]], row.run];
    const all = text.join(" ").toLowerCase();
    return words.every(word => all.includes(word)) ? 1 : 0;
  });
}

/** The mean of a step function over [from, to], from its integral at the steps. */
function meanOf(steps, from, to) {
  const upto = t => {
    const k = Math.min(firstAtLeast(steps.times, t), steps.times.length - 1);
    return k ? steps.integral[k - 1] + steps.values[k - 1] * (Math.min(t, steps.times[k]) - steps.times[k - 1]) : 0;
  };
  return to > from ? (upto(to) - upto(from)) / (to - from) : 0;
}
function integrate(steps) {
  steps.integral = [0];
  for (let k = 1; k < steps.times.length; k++)
    steps.integral.push(steps.integral[k - 1] + steps.values[k - 1] * (steps.times[k] - steps.times[k - 1]));
  return steps;
}
