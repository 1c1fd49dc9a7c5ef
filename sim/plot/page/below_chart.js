// Below the chart: where the time of each device went, why, and all ops as a table that sorts and filters.
"use strict";
const MOST_ROWS = 200;
const stories = document.getElementById("stories"), opsPart = document.getElementById("ops");

/** A table; each row is a list of texts, and shows a place in the chart when it is clicked. */
function makeTable(parent, titles, numbers) {
  const table = add(parent, "table"), head = add(add(table, "thead"), "tr");
  titles.forEach((title, k) => add(head, "th", { textContent: title, className: numbers.has(k) ? "number" : "" }));
  return [add(table, "tbody"), [...head.children]];
}
function addCells(tr, texts, numbers) {
  texts.forEach((text, k) => add(tr, "td", { textContent: text, title: text, className: numbers.has(k) ? "number" : "" }));
}

// ---- why it took so long ----
for (const run of page.stories) {
  const plain = colour => `background: ${colour}`;   // who does not know light-dark keeps the first
  const colourOf = part => part === "idle" ? plain("var(--grid)") : run.colours[part] === null ? plain("var(--ink)")
    : `${plain(run.colours[part][0])}; ${plain(`light-dark(${run.colours[part]})`)}`;
  const part = add(stories, "details", { open: run === page.stories[0] });   // of several runs the others on a click
  add(part, "summary", { textContent: `Where the time went: ${run.title}` });
  const use = add(part, "div", { className: "use" });
  for (const [devices, parts] of run.use) {
    add(use, "span", { textContent: devices });
    const bar = add(use, "div");
    for (const [part, share] of parts) {
      const piece = add(bar, "span", { title: `${part} ${(100 * share).toFixed(1)} %` });
      piece.style.cssText = `width: ${100 * share}%; ${colourOf(part)}`;
    }
  }
  add(use, "span");
  const names = add(use, "div", { className: "shares" });
  for (const part of Object.keys(run.colours)) {
    const label = add(names, "span");
    add(label, "i", { className: "colour" }).style.cssText = colourOf(part);
    label.append(part);
  }
  for (const section of run.sections) {
    if (section.text) add(part, "pre", { textContent: section.text });
    for (const rows of section.tables) {
      const titles = Object.keys(rows[0]);
      const numbers = new Set([...titles.keys()].filter(k => rows.every(row => /^(-?\d\S*( \S+)?)?$/.test(row[titles[k]]))));
      const [body] = makeTable(part, titles, numbers);
      for (const row of rows.slice(0, MOST_ROWS)) addCells(add(body, "tr"), Object.values(row), numbers);
      if (rows.length > MOST_ROWS) addCells(add(body, "tr"), [`... ${rows.length - MOST_ROWS} more`], numbers);
    }
  }
  add(part, "pre", { textContent: run.text });
  if (!run.gaps.length) continue;
  add(part, "h3", { textContent: "Longest idle stretches" });
  const [body] = makeTable(part, ["device", "at", "for", "reason", "cause"], new Set([1, 2]));
  for (const gap of run.gaps) {
    const tr = add(body, "tr");
    tr.dataset.from = gap.start_ns;
    addCells(tr, [gap.device, exact(gap.start_ns), exact(gap.length_ns), gap.reason, gap.blame], new Set([1, 2]));
    tr.onclick = () => lookAt(gap.start_ns, gap.start_ns + gap.length_ns);
  }
}

// ---- the ops: only rows in sight are in the document ----
const runs = rows.filter(row => row.bars), ROW = 23;
const opColumns = [
  ["run", runs.length > 1, o => o.row.run],
  ["op", true, o => page.names[o.row.bars.name[o.bar]]],
  ["kind", true, o => page.kinds[o.row.bars.entry[o.bar]].label],
  ["on", true, o => o.row.lane_names[o.row.bars.lane[o.bar]]],
  ["iteration", runs.some(row => row.repeated), o => o.row.bars.iteration[o.bar], String],
  ["start", true, o => o.row.bars.start[o.bar], exact],
  ["lasted", true, o => o.row.bars.lasted[o.bar], exact],
  ["waited", true, o => o.row.bars.ready[o.bar] - o.row.bars.met[o.bar], exact],
  ["for", true, o => page.reasons[o.row.bars.reason[o.bar]]],
  ["critical path", true, o => o.row.onPath[o.bar] ? "yes" : ""],
].filter(([, wanted]) => wanted);
const opNumbers = new Set(opColumns.flatMap(([, , , shown], k) => shown ? [k] : []));
let shownOps = [], sortBy = null, falling = false;

function collectOps() {
  shownOps = [];
  for (const row of runs) {
    const matches = matching(page, row, filter);
    for (let bar = 0; bar < row.bars.n; bar++)
      if (row.bars.name[bar] >= 0 && matches[bar] && (!pathShown || row.onPath[bar])) shownOps.push({ row, bar });
  }
  if (sortBy) {
    const value = sortBy[2], way = falling ? -1 : 1;
    const keys = new Map(shownOps.map(o => [o, value(o)]));
    shownOps.sort((p, q) => {
      const a = keys.get(p), b = keys.get(q);
      return (a < b ? -1 : a > b ? 1 : 0) * way;
    });
  }
  const all = runs.reduce((n, row) => n + row.bars.name.reduce((m, name) => m + (name >= 0), 0), 0);
  const time = shownOps.reduce((sum, o) => sum + o.row.bars.lasted[o.bar], 0);
  const packed = runs.some(row => row.bars.name.includes(-2)) ? " (the shortest ones are not listed one by one)" : "";
  opCount.textContent = `${shownOps.length.toLocaleString("en")} of ${all.toLocaleString("en")} ops and transfers, ` +
    `${exact(time)} together${packed}`;
  opScroll.scrollTop = 0;
  showOps();
}
function showOps() {
  const first = Math.max(0, Math.floor(opScroll.scrollTop / ROW) - 10), last = Math.min(shownOps.length, first + 50);
  opBody.replaceChildren();
  const space = n => { add(add(opBody, "tr"), "td", { colSpan: opColumns.length }).style.cssText = `height: ${n * ROW}px; padding: 0`; };
  if (first) space(first);
  for (const op of shownOps.slice(first, last)) {
    const tr = add(opBody, "tr");
    tr.style.height = ROW + "px";
    addCells(tr, opColumns.map(([, , value, shown]) => shown ? shown(value(op)) : value(op)), opNumbers);
    tr.onclick = () => {
      const b = op.row.bars;
      chosen = op;
      lookAt(b.start[op.bar], b.end[op.bar]);
      op.row.canvas.scrollIntoView({ block: "nearest" });
    };
  }
  if (last < shownOps.length) space(shownOps.length - last);
}
add(opsPart, "h3", { textContent: "Ops" });
const search = add(opsPart, "input", { type: "search", placeholder: "filter: words of op, kind, lane, reason" });
const opCount = add(opsPart, "span", { className: "faint" });
const opScroll = add(opsPart, "div", { className: "scroll" });
const [opBody, heads] = makeTable(opScroll, opColumns.map(([title]) => title), opNumbers);
heads.forEach((th, k) => th.onclick = () => {
  falling = sortBy === opColumns[k] ? !falling : opNumbers.has(k);
  sortBy = opColumns[k];
  heads.forEach((each, j) => { each.textContent = opColumns[j][0] + (j === k ? (falling ? " ▾" : " ▴") : ""); });
  collectOps();
});
opScroll.onscroll = showOps;
search.oninput = () => { filter = search.value; mark(); collectOps(); };
pathBox.addEventListener("change", collectOps);
collectOps();
