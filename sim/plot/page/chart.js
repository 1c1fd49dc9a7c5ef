// The chart: a canvas for each run, for each device's memory and for the links of a run, on one axis of time.
"use strict";
const page = JSON.parse(document.getElementById("data").textContent);
const HEIGHT = 0.8, LANE = 26, THIN = 15, STRIP = 64, LINK = 14, AXIS = 26;   // a bar's share of its lane; pixels
const FONT = "px system-ui, sans-serif";
const MANY = 24;                                      // lanes, from which on they are thinner
const ratio = window.devicePixelRatio || 1;
const hidden = new Set(), rows = [];
const tip = document.getElementById("tip"), gantt = document.getElementById("gantt");
let view = [0, page.until], width = 0, printing = page.theme === "print", pathShown = page.path_shown, filter = "", chosen = null;

// ---- the page: a title, names and a canvas for each row, and one time axis below all ----
const add = (parent, tag, props = {}) => Object.assign(parent.appendChild(document.createElement(tag)), props);
function makeRow(height, row) {
  if (row.title) add(gantt, "h2", { textContent: row.title, className: row.bars ? "" : "note" });
  const line = add(gantt, "div", { className: "row" });
  const names = add(line, "div", { className: row.names.length > MANY ? "names many" : "names" });
  for (const [y, text] of row.names) add(names, "span", { textContent: text, title: text }).style.top = y * height + "px";
  const canvas = add(line, "canvas");
  canvas.style.height = names.style.height = height + "px";
  rows.push(Object.assign(row, { canvas, height }));
}
for (const row of page.rows) {
  if (row.bars) {
    row.bars = unpack(row.bars);
    row.lanes = lanesOf(row.bars);
    row.onPath = new Uint8Array(row.bars.n);
    row.lane_height = row.names.length > MANY ? THIN : LANE;
    for (const k of row.path ? row.path.bar : []) if (k >= 0) row.onPath[k] = 1;
    makeRow(row.lane_height * Math.max(1, row.names.length), row);
  } else if (row.links) {
    row.links.forEach(integrate);
    makeRow(LINK * row.links.length, row);
  } else makeRow(STRIP, row);
}
const axis = { title: "", names: [], axis: true };
makeRow(AXIS, axis);
const longest = Math.max(60, ...[...document.querySelectorAll(".names span")].map(s => s.offsetWidth));
document.body.style.setProperty("--names", longest + 16 + "px");
if (page.theme) document.documentElement.dataset.theme = page.theme === "dark" ? "dark" : "light";
for (const entry of page.legend) {
  const button = add(document.getElementById("legend"), "button", { ariaPressed: "true" });
  add(button, "i", { className: "colour" });
  button.append(entry.label);
  button.onclick = () => {
    const shown = button.ariaPressed === "true";
    for (const kind of entry.kinds) shown ? hidden.add(kind) : hidden.delete(kind);
    button.ariaPressed = String(!shown);
    draw();
  };
}

// ---- colours: those of the data on paper, or as `sim.plot.theme.on_dark` says, hatched in print ----
let paper, ink, faint, grid, heat;
/** Black or white, whichever has more contrast (relative luminance, WCAG 2.2), as in pictures. */
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16) / 255)
    .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}
const light = colour => [1, 3, 5].reduce((sum, at, k) => sum + [0.3, 0.59, 0.11][k] * parseInt(colour.slice(at, at + 2), 16), 0);
function dress() {
  const style = getComputedStyle(document.documentElement), value = name => style.getPropertyValue(name).trim();
  [paper, ink, faint, grid, heat] = ["--paper", "--ink", "--faint", "--grid", "--heat"].map(value);
  const dark = light(paper.length === 4 ? "#ffffff" : paper) < 128;
  const apart = [...new Set(page.kinds.map(kind => kind.colour))];
  for (const kind of page.kinds) {
    kind.fill = kind.colour === "black" ? ink : dark ? kind.dark : kind.colour;
    kind.text = inkOn(kind.fill.length === 4 ? "#222222" : kind.fill);
    kind.hatch = HATCHES[apart.indexOf(kind.colour) % HATCHES.length];
  }
  document.querySelectorAll("#legend i").forEach((i, k) => {
    const [first] = page.legend[k].kinds, fills = [...new Set(page.legend[k].kinds.map(kind => page.kinds[kind].fill))].slice(0, 4);
    const slices = fills.map((fill, at) => `${fill} ${100 * at / fills.length}% ${100 * (at + 1) / fills.length}%`);
    i.style.background = printing ? `url(${hatched(first).toDataURL()})` : `linear-gradient(90deg, ${slices})`;
  });
  draw();
}
const HATCHES = [[], [[0, 8, 8, 0]], [[0, 0, 8, 8]], [[4, 0, 4, 8]], [[0, 4, 8, 4]], [[0, 8, 8, 0], [0, 0, 8, 8]]];
function hatched(kind) {
  const { fill, text, hatch } = page.kinds[kind];
  const tile = Object.assign(document.createElement("canvas"), { width: 8, height: 8 }), t = tile.getContext("2d");
  t.fillStyle = fill; t.fillRect(0, 0, 8, 8); t.strokeStyle = text; t.globalAlpha = 0.6; t.lineWidth = 0.8;
  for (const [a, b, d, e] of hatch) { t.beginPath(); t.moveTo(a, b); t.lineTo(d, e); t.stroke(); }
  return tile;
}
const fillOf = (c, kind) => printing ? c.createPattern(hatched(kind), "repeat") : page.kinds[kind].fill;

// ---- drawing ----
const x = t => (t - view[0]) / (view[1] - view[0]) * width;
function prepare(row) {
  width = row.canvas.clientWidth;
  row.canvas.width = Math.round(width * ratio);
  row.canvas.height = Math.round(row.height * ratio);
  const c = row.canvas.getContext("2d");
  c.scale(ratio, ratio);
  return c;
}
function ticks() {
  const span = (view[1] - view[0]) / page.unit, rough = span / Math.max(2, width / 90);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough);
  const found = [];
  for (let k = Math.ceil(view[0] / page.unit / step); k * step * page.unit <= view[1]; k++) found.push(k * step);
  return [found, step];
}
const trail = (c, points) => points.forEach(([px, py], k) => k ? c.lineTo(px, py) : c.moveTo(px, py));
function line(c, points) {
  c.beginPath(); trail(c, points); c.stroke();
}
function drawGrid(c, row) {
  c.strokeStyle = grid; c.lineWidth = 1;
  for (const t of ticks()[0]) line(c, [[x(t * page.unit), 0], [x(t * page.unit), row.height]]);
}
function drawDotted(c, row, t) {
  c.strokeStyle = ink; c.lineWidth = 1; c.setLineDash([1, 3]);
  line(c, [[x(t), 0], [x(t), row.height]]); c.setLineDash([]);
}
function drawAxis(c) {
  const [found, step] = ticks(), digits = Math.max(0, -Math.floor(Math.log10(step)));
  c.fillStyle = ink; c.font = "11px system-ui, sans-serif"; c.textAlign = "center";
  for (const t of found) {
    const at = x(t * page.unit);
    const text = t.toFixed(digits), half = c.measureText(text).width / 2;
    if (at >= 0 && at < width - half) c.fillText(text, Math.max(at, half), 12);
  }
  c.textAlign = "right"; c.fillText("time (" + page.word + ")", width, 24);
}
function box(row, lane, level, levels) {   // top and height of a bar
  const height = HEIGHT * row.lane_height / levels;
  return [(lane + 0.5 - HEIGHT / 2) * row.lane_height + level * height, height];
}
const boxOf = (row, k) => box(row, row.bars.lane[k], row.bars.level[k], row.bars.levels[k]);

/** Bars of a lane in view: the wide ones, and what share of each column of pixels the others fill, by entry. */
function inView(row, lane, px) {
  const b = row.bars, wide = [], thin = new Map(), columns = Math.ceil(width / px) + 1;
  for (let at = firstAtLeast(lane.ends, view[0]); at < lane.bars.length; at++) {
    const k = lane.bars[at];
    if (b.start[k] > view[1]) break;
    if (hidden.has(b.entry[k])) continue;
    const left = x(b.start[k]), right = x(b.end[k]);
    if (right - left >= px) { wide.push(k); continue; }
    const key = b.entry[k] * 2 + (row.marked && row.marked[k]);
    if (!thin.has(key)) thin.set(key, new Float32Array(columns));
    for (let column = Math.max(0, Math.floor(left / px)); column * px < right && column < columns; column++)
      thin.get(key)[column] += (Math.min(right, (column + 1) * px) - Math.max(left, column * px)) / px;
  }
  return [wide, thin];
}
function drawBars(c, row) {
  const b = row.bars, px = 1 / ratio, pale = 0.18;
  const fills = page.kinds.map((_, kind) => fillOf(c, kind));
  c.textAlign = "center"; c.textBaseline = "middle";
  for (const lane of row.lanes) {
    const [top, height] = box(row, lane.lane, lane.level, lane.levels), [wide, thin] = inView(row, lane, px);
    const filled = new Float32Array(Math.ceil(width / px) + 1);
    for (const [key, shares] of [...thin].sort((p, q) => p[0] - q[0])) {
      c.fillStyle = page.kinds[key >> 1].fill;
      c.globalAlpha = row.marked && !(key & 1) ? pale : 1;
      for (let column = 0; column < shares.length; column++) {
        if (!shares[column]) continue;
        filled[column] += shares[column];
        c.fillRect(column * px, top + (1 - filled[column]) * height, px, shares[column] * height);
      }
    }
    const largest = Math.min(11, 0.95 * height);
    for (const k of wide) {
      const left = Math.max(x(b.start[k]), -2), right = Math.min(x(b.end[k]), width + 2);
      c.globalAlpha = row.marked && !row.marked[k] ? pale : 1;
      c.fillStyle = fills[b.entry[k]];
      c.fillRect(left, top, right - left, height);          // as wide as it is, with soft edges
      if (right - left <= 6) continue;
      c.fillStyle = paper; c.fillRect(right - 0.5, top, 0.5, height);
      c.font = largest + FONT;
      const [name, size] = written(textsOf(page, row, k), text => c.measureText(text).width / largest, right - left - 3, largest);
      if (!name) continue;
      const faint = c.globalAlpha < 1, middle = (left + right) / 2;
      c.font = size + FONT;
      if (printing) {                                        // hatches would be read as letters
        const half = c.measureText(name).width / 2;
        c.fillStyle = paper; c.fillRect(middle - half, top + (height - size) / 2, 2 * half, size);
      }
      c.fillStyle = faint || printing ? ink : page.kinds[b.entry[k]].text;
      if (faint) c.globalAlpha = 0.5;
      c.fillText(name, middle, top + height / 2 + 0.5);
    }
  }
  c.globalAlpha = 1;
}
function drawArrows(c, row) {
  c.strokeStyle = c.fillStyle = ink; c.lineWidth = 0.8;
  c.globalAlpha = Math.min(0.9, Math.max(0.25, 40 / row.arrows.length));
  for (const [from, to] of row.arrows) {
    const b = row.bars;
    if (hidden.has(b.entry[from]) || hidden.has(b.entry[to])) continue;
    if (b.end[from] > view[1] || b.start[to] < view[0]) continue;
    const [top0, height0] = boxOf(row, from), [top1, height1] = boxOf(row, to), down = top1 > top0;
    const x0 = x(b.end[from]), y0 = down ? top0 + height0 : top0, x1 = x(b.start[to]), y1 = down ? top1 : top1 + height1;
    line(c, [[x0, y0], [x1, y1]]);
    const back = down ? -4 : 4;
    c.beginPath(); c.moveTo(x1, y1); c.lineTo(x1 - 3, y1 + back); c.lineTo(x1 + 3, y1 + back); c.fill();
  }
  c.globalAlpha = 1;
}
/** The critical path: bars with a frame, and a line from each to the next, along the lane of what waits. */
function drawPath(c, row) {
  const path = row.path, b = row.bars, pieces = [[]];
  c.strokeStyle = ink; c.lineWidth = 1.5; c.beginPath();
  for (let at = Math.max(0, firstAtLeast(path.end, view[0]) - 1); at < path.end.length; at++) {
    const k = path.bar[at], left = x(path.start[at]), right = x(path.end[at]), y = (path.lane[at] + 0.5) * row.lane_height;
    pieces.at(-1).push([left, y]);
    if (path.start[at] > view[1]) break;
    if (k >= 0 && right - left > 3) {                        // no line through its name
      const [top, height] = boxOf(row, k);
      c.rect(x(b.start[k]), top, x(b.end[k]) - x(b.start[k]), height);
      pieces.push([]);
    }
    pieces.at(-1).push([right, y]);
  }
  c.stroke();
  pieces.forEach((points, at) => {                           // from edge to edge of bars
    const shift = (end, next) => { end[1] += Math.sign(next[1] - end[1]) * HEIGHT / 2 * row.lane_height; };
    if (points.length < 2) return;
    const [first, second] = points, [last, before] = [points.at(-1), points.at(-2)];
    if (at > 0) shift(first, second);
    if (at < pieces.length - 1) shift(last, points.length > 2 ? before : [0, first[1]]);
  });
  for (const [style, thick] of [[paper, 3.5], [ink, 1.5]]) {   // a rim sets it off from bars of any colour
    c.strokeStyle = style; c.lineWidth = thick; c.beginPath();
    for (const points of pieces) if (points.length > 1) trail(c, points);
    c.stroke();
  }
}
function drawMemory(c, row) {
  const y = nbytes => row.height * (1 - nbytes / row.top / 1.35), times = row.times, n = times.length;
  const below = new Float64Array(n);
  const step = (values, from) => {
    for (let k = from; k < n; k++) {
      if (k) c.lineTo(x(times[k]), y(values[k - 1]));
      c.lineTo(x(times[k]), y(values[k]));
    }
  };
  const fill = (entry, held) => {
    if (hidden.has(entry)) return;
    const above = below.map((b, k) => b + held[k]);
    c.beginPath(); c.moveTo(x(times[0]), y(below[0])); step(above, 0);
    for (let k = n - 1; k >= 0; k--) { c.lineTo(x(times[k]), y(below[k])); if (k) c.lineTo(x(times[k]), y(below[k - 1])); }
    c.fillStyle = fillOf(c, entry); c.fill();
    below.set(above);
  };
  for (const band of row.bands) fill(band.entry, band.nbytes);
  if (row.reserved && !hidden.has(row.reserved.entry)) {
    c.strokeStyle = page.kinds[row.reserved.entry].fill; c.lineWidth = 1;
    c.beginPath(); c.moveTo(x(times[0]), y(row.reserved.nbytes[0])); step(row.reserved.nbytes, 0); c.stroke();
  }
  if (row.capacity && !hidden.has(row.capacity.entry)) {
    c.strokeStyle = page.kinds[row.capacity.entry].fill; c.setLineDash([5, 3]);
    line(c, [[0, y(row.capacity.nbytes)], [width, y(row.capacity.nbytes)]]); c.setLineDash([]);
  }
  drawDotted(c, row, row.peak_ns);
  const at = x(row.peak_ns), late = at > width / 2;
  c.fillStyle = ink; c.font = "10px system-ui, sans-serif"; c.textAlign = late ? "right" : "left";
  c.fillText(row.peak, at + (late ? -4 : 4), 10);
}
function drawLinks(c, row) {
  const ns = (view[1] - view[0]) / width;
  row.links.forEach((link, k) => {
    c.fillStyle = grid; c.fillRect(0, k * LINK + 1, width, LINK - 2);
    for (let column = 0; column < width; column++) {
      const used = meanOf(link, view[0] + column * ns, view[0] + (column + 1) * ns);
      if (used <= 0) continue;
      c.fillStyle = `rgba(${heat}, ${Math.min(1, 0.25 + 0.75 * used)})`;
      c.fillRect(column, k * LINK + 1, 1, LINK - 2);
    }
  });
}
function drawNow() {
  pending = false;
  for (const row of rows) {
    const c = prepare(row);
    if (row.axis) { drawAxis(c); continue; }
    if (row.links) { drawLinks(c, row); continue; }
    drawGrid(c, row);
    if (!row.bars) { drawMemory(c, row); continue; }
    drawBars(c, row);
    if (row.arrows.length) drawArrows(c, row);
    if (pathShown && row.path) drawPath(c, row);
    if (chosen && chosen.row === row) {
      const [top, height] = boxOf(row, chosen.bar), left = x(row.bars.start[chosen.bar]);
      c.strokeStyle = ink; c.lineWidth = 3;
      c.strokeRect(left - 1, top - 1, Math.max(3, x(row.bars.end[chosen.bar]) - left + 2), height + 2);
    }
    drawDotted(c, row, row.makespan_ns);
  }
  document.body.dataset.drawnMs = Math.round(performance.now());
}
let pending = false;
function draw() { if (!pending) { pending = true; requestAnimationFrame(drawNow); } }

// ---- what stands out: the critical path, and what matches the filter; all else is pale ----
function mark() {
  for (const row of rows) {
    if (!row.bars) continue;
    const matches = filter ? matching(page, row, filter) : null, on = pathShown && row.path ? row.onPath : null;
    row.marked = matches && on ? matches.map((m, k) => m & on[k]) : matches || on;
  }
  draw();
}

// ---- zooming and moving: the range keeps its length at both ends ----
function look(from, length) {
  length = Math.min(page.until, Math.max(length, page.until / 1e6, 10));
  from = Math.min(Math.max(0, from), page.until - length);
  view = [from, from + length];
  draw();
}
/** Show what happens from one time to another, with as much around it again. */
function lookAt(from, to) {
  const around = Math.max(to - from, page.until / 2000) * 2;
  look(from - around, to - from + 2 * around);
  gantt.scrollIntoView({ block: "nearest" });
}
let drag = null;
gantt.addEventListener("pointerdown", e => {
  if (e.target.tagName !== "CANVAS") return;
  drag = { at: e.clientX, from: view[0] }; e.target.setPointerCapture(e.pointerId); tip.style.display = "none";
});
gantt.addEventListener("pointermove", e => {
  if (drag) look(drag.from - (e.clientX - drag.at) / width * (view[1] - view[0]), view[1] - view[0]);
  else tell(e);
});
for (const over of ["pointerup", "pointercancel"]) gantt.addEventListener(over, () => { drag = null; });
gantt.addEventListener("pointerleave", () => { tip.style.display = "none"; });
gantt.addEventListener("dblclick", () => look(0, page.until));
gantt.addEventListener("wheel", e => {
  if (e.target.tagName !== "CANVAS") return;
  e.preventDefault();
  const length = view[1] - view[0], share = e.offsetX / width, next = length * 1.0015 ** e.deltaY;
  const clamped = Math.min(page.until, Math.max(next, page.until / 1e6, 10));
  look(view[0] + share * (length - clamped), clamped);
}, { passive: false });
window.addEventListener("resize", draw);

// ---- the story of what is below the pointer ----
function tell(e) {
  const row = rows.find(r => r.canvas === e.target), t = view[0] + e.offsetX / width * (view[1] - view[0]);
  const lines = row && row.bars ? atBar(row, t, e.offsetY) : row && row.links ? atLink(row, t, e.offsetY) : null;
  tip.style.display = lines ? "block" : "none";
  if (!lines) return;
  const [head, ...rest] = lines;
  tip.textContent = rest.join("\n");
  tip.prepend(Object.assign(document.createElement("b"), { textContent: head }));
  tip.style.left = Math.min(e.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(e.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + "px";
}
function atBar(row, t, y) {
  const b = row.bars, near = Math.max(1, 2 / width * (view[1] - view[0]));
  let best = -1, distance = Infinity, many = 0;
  for (const lane of row.lanes) {
    const [top, height] = box(row, lane.lane, lane.level, lane.levels);
    if (y < top || y > top + height) continue;
    for (let at = firstAtLeast(lane.ends, t - near); at < lane.bars.length; at++) {
      const k = lane.bars[at], off = Math.max(b.start[k] - t, t - b.end[k], 0);
      if (b.start[k] > t + near) break;
      if (hidden.has(b.entry[k])) continue;
      many++;
      if (off < distance) { best = k; distance = off; }
    }
  }
  if (best < 0) return null;
  const lines = story(page, row, best);
  if (row.path && row.onPath[best]) lines.push("on the critical path");
  if (many > 1) lines.push(`(${many} bars are this near)`);
  return lines;
}
function atLink(row, t, y) {
  const link = row.links[Math.min(row.links.length - 1, Math.floor(y / LINK))], ns = (view[1] - view[0]) / width;
  const used = meanOf(link, t - ns / 2, t + ns / 2);
  return [link.name, `${(100 * used).toFixed(1)} % of ${bytes(link.bytes_per_s)}/s`, `at ${exact(Math.round(t))}`,
    `${bytes(link.nbytes)} in all, ${(100 * link.mean).toFixed(1)} % of the makespan`];
}

// ---- switches ----
const pathBox = document.getElementById("path");
pathBox.checked = pathShown;
pathBox.onchange = () => { pathShown = pathBox.checked; mark(); };
const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
document.getElementById("theme").onclick = () => {
  const root = document.documentElement, now = root.dataset.theme || (prefersDark.matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  printing = false;
  dress();
};
prefersDark.addEventListener("change", dress);
let themeBefore;
window.addEventListener("beforeprint", () => {
  themeBefore = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  document.body.style.width = "1040px";                  // of a page of A4 across
  printing = true; dress(); drawNow();
});
window.addEventListener("afterprint", () => {
  if (themeBefore) document.documentElement.dataset.theme = themeBefore; else delete document.documentElement.dataset.theme;
  document.body.style.width = "";
  printing = page.theme === "print"; dress();
});
dress();
mark();
drawNow();
