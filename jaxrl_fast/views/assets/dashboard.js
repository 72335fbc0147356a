"use strict";
// The list of runs and the chart of those that are chosen.

const COLUMNS = [
  { key: "name", label: "Run", up: true },
  { key: "state", label: "State", up: true },
  { key: "env", label: "Environment", up: true, write: row => row.env || UNKNOWN },
  { key: "algo", label: "Algorithm", up: true, write: row => row.algo || UNKNOWN },
  { key: "share", label: "Steps", value: share, write: progress },
  { key: "eval_return", label: "Return", write: row => score(row.eval_return) },
  { key: "best_return", label: "Best", write: row => score(row.best_return) },
  { key: "eval_success", label: "Success", write: row => percent(row.eval_success) },
  { key: "sampling_hz", label: "Steps/s", write: row => si(row.sampling_hz) },
  { key: "update_hz", label: "Updates/s", write: row => si(row.update_hz) },
  { key: "update_frame_hz", label: "Update frames/s", write: row => si(row.update_frame_hz) },
  { key: "elapsed_s", label: "Time", write: row => clock(row.elapsed_s) },
  { key: "left_s", label: "Left", write: row => clock(row.left_s) },
  { key: "started_at", label: "Started", write: row => day(row.started_at) },
];
const ACTIVE = ["compiling", "training", "evaluating"];
const FIRST_CHOICE = 4; // so many runs that go on are drawn before anybody has chosen

const lines = new Map(); // by name: {row, tr, box, cells}
const chosen = new Map(); // by name: the number of its color
const curves = new Map(); // by name: the server's data of a selected run
const chart = new charts.Chart(byId("chart"), CHART);
let sorted = { key: "started_at", up: false };
let first = true;
let drawing = null; // the names that wait to be asked for, while others are being asked for

// Rows.

function lineOf(row) {
  const tr = document.createElement("tr"), box = document.createElement("input");
  box.type = "checkbox";
  box.ariaLabel = `draw ${row.name}`;
  box.onchange = () => choose(row.name, box.checked);
  const pick = tr.insertCell();
  pick.className = "pick";
  pick.append(box);
  const cells = Object.fromEntries(COLUMNS.map(({ key, label, up }) => {
    const cell = tr.insertCell();
    cell.dataset.label = label;
    cell.dataset.key = key;
    cell.className = up ? "" : "number";
    return [key, cell];
  }));
  const link = element("a", row.name);
  link.href = address(row.name);
  const live = element("a", "live", "live");
  live.href = `${address(row.name)}live`;
  live.ariaLabel = `${row.name}, live`;
  cells.name.append(link, live);
  cells.state.append(element("span"));
  const bar = document.createElement("progress");
  bar.ariaLabel = "steps";
  cells.share.append(element("span"), bar);
  return { row: {}, tr, box, cells };
}

function write(line, row) {
  for (const { key, write } of COLUMNS) {
    const cell = line.cells[key];
    if (key === "name") cell.lastChild.hidden = !ACTIVE.includes(row.state);
    else if (key === "state") showState(cell.firstChild, row);
    else if (key === "share") [cell.firstChild.textContent, cell.lastChild.value] = [progress(row), share(row)];
    else if (write && cell.textContent !== write(row)) cell.textContent = write(row);
  }
  line.row = row;
}

function update({ rows, gone }, whole) {
  const there = new Set(rows.map(row => row.name));
  const missing = whole ? [...lines.keys()].filter(name => !there.has(name)) : gone;
  for (const name of missing) {
    lines.get(name)?.tr.remove();
    lines.delete(name);
    choose(name, false);
  }
  for (const row of rows) {
    if (!lines.has(row.name)) lines.set(row.name, lineOf(row));
    write(lines.get(row.name), row);
  }
  offerMetrics(rows);
  const told = [...lines.values()].some(({ row }) => row.eval_success !== null);
  document.body.classList.toggle("without-success", !told);
  if (first) chooseFirst();
  first = false;
  arrange();
  draw(rows.map(row => row.name));
}

const valueOf = (row, column) => column.value ? column.value(row) : row[column.key];

function compare(one, other) {
  const column = COLUMNS.find(({ key }) => key === sorted.key), sign = sorted.up ? 1 : -1;
  const [a, b] = [valueOf(one, column), valueOf(other, column)];
  if (a === b) return one.name < other.name ? -1 : 1;
  if (a === null || b === null) return a === null ? 1 : -1; // unknown values are last
  return a < b ? -sign : sign;
}

// Sort rows and hide rows that do not match the filter. Only rows at another position change their place, since this
// loses the keyboard's focus.
function arrange() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const all = [...lines.values()].sort((one, other) => compare(one.row, other.row));
  let place = byId("rows").firstChild, shown = 0;
  for (const { row, tr } of all) {
    const text = `${row.name} ${row.env} ${row.algo} ${row.state}`.toLowerCase();
    tr.hidden = !words.every(word => text.includes(word));
    shown += !tr.hidden;
    if (tr === place) place = place.nextSibling;
    else byId("rows").insertBefore(tr, place);
  }
  const active = all.filter(({ row }) => ACTIVE.includes(row.state)).length;
  const one = all.length === 1;
  byId("count").textContent = `${all.length} run${one ? "" : "s"}, ${active} active`;
  byId("none").textContent = all.length ? "No run matches the filter." : "No runs yet. New runs appear automatically.";
  byId("none").hidden = shown > 0;
}

function sortBy(key) {
  const column = COLUMNS.find(column => column.key === key);
  sorted = { key, up: sorted.key === key ? !sorted.up : Boolean(column.up) };
  showSorting();
  arrange();
}

function showSorting() {
  for (const head of byId("heads").children) {
    const here = head.dataset.key === sorted.key;
    if (head.dataset.key) head.ariaSort = here ? (sorted.up ? "ascending" : "descending") : "none";
  }
  byId("sort").value = sorted.key;
}

function makeHeads() {
  const pick = element("th", "Draw");
  pick.scope = "col";
  byId("heads").append(pick);
  for (const { key, label, up } of COLUMNS) {
    const head = element("th", "", up ? "" : "number"), button = element("button", label);
    head.scope = "col";
    head.dataset.key = key;
    button.type = "button";
    button.onclick = () => sortBy(key);
    head.append(button);
    byId("heads").append(head);
    const option = element("option", label);
    option.value = key;
    option.dataset.key = key;
    byId("sort").append(option);
  }
}

// The chart.

function chooseFirst() {
  const newest = [...lines.values()].map(({ row }) => row).sort((one, other) => other.started_at - one.started_at);
  const active = newest.filter(row => ACTIVE.includes(row.state)).slice(0, FIRST_CHOICE);
  const before = remembered().filter(name => lines.has(name));
  const names = before.length ? before : (active.length ? active : newest.slice(0, 1)).map(row => row.name);
  for (const name of names) choose(name, true);
}

function choose(name, on) {
  if (on === chosen.has(name)) return;
  const taken = new Set(chosen.values());
  let number = 0;
  while (taken.has(number)) number++;
  if (on) chosen.set(name, number);
  else chosen.delete(name) && curves.delete(name);
  const line = lines.get(name);
  if (line) {
    line.box.checked = on;
    line.tr.classList.toggle("chosen", on);
  }
  remember();
  draw([name]);
}

// Ask for the curves of those names that are chosen, one request at a time, and draw them all.
async function draw(names) {
  if (drawing) {
    for (const name of names) drawing.add(name);
    return;
  }
  drawing = new Set(names);
  while (drawing.size) {
    const [name] = drawing;
    drawing.delete(name);
    if (!chosen.has(name)) continue;
    const of = byId("of").value;
    const curve = await ask("/api/curve", { run: name, of }).catch(() => null);
    if (curve && chosen.has(name)) curves.set(name, { ...curve, of });
  }
  drawing = null;
  show();
}

function show() {
  const of = byId("of").value;
  const ready = [...chosen].filter(([name]) => curves.get(name)?.of === of);
  for (const [name, number] of chosen) {
    const line = lines.get(name);
    if (line) line.box.style.accentColor = charts.color(number);
  }
  const nothing = chosen.size ? "Nothing to draw yet: no data." : "Select runs in the list to draw them.";
  showCurves(chart, ready.map(([name, number]) => ({ ...curves.get(name), number })), byId("by").value, nothing);
}

// For a page that is loaded again. A browser may refuse to remember.
function remember() {
  try { sessionStorage.setItem("chosen", JSON.stringify([...chosen.keys()])); } catch { /* then it begins anew */ }
}

function remembered() {
  try { return JSON.parse(sessionStorage.getItem("chosen")) ?? []; } catch { return []; }
}

makeHeads();
showSorting();
byId("filter").oninput = arrange;
byId("sort").onchange = () => sortBy(byId("sort").value);
byId("of").onchange = () => draw([...chosen.keys()]);
byId("by").onchange = () => { charts.forgetZoom(); show(); };
byId("clear").onclick = () => [...chosen.keys()].forEach(name => choose(name, false));
charts.dark.addEventListener("change", show);
follow("", update);
