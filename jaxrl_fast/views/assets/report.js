"use strict";

const content = JSON.parse(document.getElementById("content").textContent);
const { runs, details } = content, single = runs.length === 1;
const find = (id) => document.getElementById(id);
const WORDS = { compiling: "⏳ compiling", training: "▶ running", evaluating: "▶ evaluating", done: "✓ done",
                stopped: "■ stopped", failed: "✗ failed", dead: "✗ dead: its process is gone", unknown: "state unknown" };
const RATES = [["sampling_hz", "sampling, steps/s"], ["update_hz", "updates/s"], ["update_frame_hz", "update frame rate, samples/s"]];
const NOT_METRICS = new Set(["env_steps", "wall_s", "updates", "episodes", "seed", ...RATES.map(([name]) => name)]);
const WANTED = [/^episode_return$/, /^episode_length$/, /loss$/, /entropy$/, /kl$/, /temperature$/, /q_mean$/, /learning_rate$/, /^env\//];
const shown = new Set();
let axis = "env_steps";

function add(place, tag, text, properties = {}) {
  const element = document.createElement(tag);
  if (text != null) element.textContent = text;
  Object.assign(element, properties);
  place.append(element);
  return element;
}

function showHead() {
  const run = runs[0];
  document.title = find("title").textContent = single ? run.title : runs.map((r) => r.name).join(" · ");
  find("state").textContent = single
    ? [run.name, WORDS[run.state] || run.state, run.error].filter(Boolean).join(" — ")
    : runs.map((r) => `${r.name}: ${r.title}, ${WORDS[r.state] || r.state}`).join(" — ");
  const goesOn = runs.some((r) => ["compiling", "training", "evaluating"].includes(r.state));
  find("written").textContent = `written ${new Date(content.written_at * 1000).toLocaleString()}`
    + (goesOn ? "; the run goes on: load the page again to see more" : "");
}

function showFigures() {
  const place = find("figures");
  const labels = [...new Set(runs.flatMap((run) => run.figures.map((f) => f.label)))];
  if (!single) return table(place, ["run", ...labels], runs.map((run) => [
    run.name, ...labels.map((label) => (run.figures.find((f) => f.label === label) || {}).value || "–")]));
  for (const { label, value, note } of runs[0].figures) {
    const list = add(place, "dl");
    add(list, "dt", label); add(list, "dd", value); add(list, "dd", note);
  }
  place.hidden = !runs[0].figures.length;
}

function learningLines() {
  return runs.flatMap((run, i) => {
    const { scores, metrics } = run, style = { color: i, dash: single ? [] : charts.dash(i) };
    // two seeds have no interval
    const ranged = scores.low.length > 0, mean = ranged || !scores.seeds.length ? "mean" : `mean, ${scores.interval}`;
    const lines = [{ label: single ? mean : run.name, x: scores[axis], y: scores.mean, low: scores.low, high: scores.high, band: ranged ? scores.interval : "", points: true, width: 2.2, ...style }];
    if (single) {
      scores.seeds.forEach((y, seed) => lines.push({ label: `seed ${seed}`, x: scores[axis], y, color: i, width: 1, quiet: true }));
      if (metrics.episode_return) lines.push({ label: "training", x: metrics[axis], y: metrics.episode_return, color: 1, dash: [5, 4], width: 1.2 });
    }
    return lines;
  });
}

function referenceLine(lines) {
  const { reference } = runs[0];
  const xs = lines.flatMap((line) => line.x);
  if (!single || !reference || !xs.length) return [];
  return [{ label: `reference (${reference.source})`, x: [Math.min(...xs), Math.max(...xs)],
            y: [reference.return, reference.return], color: 2, dash: [2, 4], width: 1.4 }];
}

function showKeys(place, lines) {
  const list = add(place, "ul", null, { className: "keys" });
  for (const { label, color, dash = [], band } of lines.filter((line) => !line.quiet)) {
    const item = add(list, "li");
    item.innerHTML = `<svg viewBox="0 0 26 10" aria-hidden="true"><line x1="0" y1="5" x2="26" y2="5" stroke-width="2.5"/></svg>`;
    const line = item.querySelector("line");
    line.setAttribute("stroke", charts.color(color));
    line.setAttribute("stroke-dasharray", dash.join(" "));
    item.append(band ? `${label}; shaded: ${band}` : label);
  }
}

function showLearning() {
  const place = find("learning"), lines = learningLines().filter((line) => line.y.some((value) => value != null));
  place.querySelectorAll(".keys, .quiet").forEach((old) => old.remove());
  if (!lines.length) return add(place, "p", [...new Set(runs.map((run) => run.unevaluated))].join(" "), { className: "quiet" });
  const all = [...lines, ...referenceLine(lines)];
  showKeys(place, all);
  new charts.Chart(place, { height: innerWidth < 600 ? 260 : 360 }).show(all, axis);
  showOfEpisodes(place, "success", { title: "success, % of the episodes", fromZero: true });
  showMetricsOfEpisodes(place);
}

// A chart for each metric of the environment that varies; the others are listed with their only value.
function showMetricsOfEpisodes(place) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.scores).filter((key) => key.startsWith("env/"))))];
  const valuesOf = (name) => [...new Set(runs.flatMap((run) => run.scores[name] || []).filter((value) => value != null))];
  const constant = names.filter((name) => valuesOf(name).length === 1);
  place.querySelector(".grid")?.remove();
  const grid = add(place, "div", null, { className: "grid" });
  for (const name of names.filter((name) => valuesOf(name).length > 1))
    showOfEpisodes(grid, name, { title: `${name} of the greedy episodes` });
  if (constant.length)
    add(place, "p", `Without a change: ${constant.map((name) => `${name} ${score(valuesOf(name)[0])}`).join(", ")}.`, { className: "quiet" });
}

function showOfEpisodes(place, key, look) {
  const lines = runs.map(({ name, scores }, i) => (
    { label: name, x: scores[axis], y: scores[key] || [], points: true, color: i, dash: single ? [] : charts.dash(i) })).filter((line) => line.y.some((value) => value != null));
  if (lines.length) new charts.Chart(place, { height: 170, ...look }).show(lines, axis);
}

function metricLines(name) {
  return runs.flatMap((run, i) => {
    const seeds = single ? run.seeds : [];
    const lines = seeds.filter((s) => s[name]).map((s, seed) => ({ label: `seed ${seed}`, x: run.metrics[axis], y: s[name].slice(0, run.metrics[axis].length), color: i, width: .8, quiet: true }));
    if (run.metrics[name]) lines.unshift({ label: run.name, x: run.metrics[axis], y: run.metrics[name], color: i, dash: single ? [] : charts.dash(i) });
    return lines;
  });
}

function showCharts(section, names) {
  const place = find(section).querySelector(".grid");
  for (const [name, title] of names)
    new charts.Chart(place, { title, height: 170, ...(section === "rates" ? steady(name) : {}) }).show(metricLines(name), axis);
  find(section).hidden = !names.length && section === "rates";
  find("before").hidden = !runs.some((run) => run.warmup_rows);
  if (!single) find("before").textContent = "Shaded: before the first update of every run. The axes show the rates since then.";
}

// Rates are many times as high while a replay buffer only fills, so the vertical axis covers the time afterwards.
function steady(name) {
  const found = runs.filter((run) => run.warmup_rows);
  if (!found.length) return { fromZero: true };
  const until = Math.max(...found.map((run) => run.metrics[axis][run.warmup_rows - 1]));
  const top = Math.max(0, ...runs.flatMap((run) => (run.metrics[name] || []).slice(run.warmup_rows)));
  return { fromZero: true, top, until };
}

const metricNames = () => [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))].filter((name) => !NOT_METRICS.has(name));

function showChoice() {
  const place = find("choose"), names = metricNames();
  const search = add(place, "input", null, { type: "search", placeholder: "find a metric" });
  search.setAttribute("aria-label", "Find a metric");
  for (const name of names) {
    const varies = runs.some((run) => new Set((run.metrics[name] || []).filter((v) => v != null)).size > 1);
    if (varies && WANTED.some((wanted) => wanted.test(name))) shown.add(name);
    const label = add(place, "label", null, { className: "chip" });
    const box = add(label, "input", null, { type: "checkbox", checked: shown.has(name) });
    label.append(name);
    box.addEventListener("change", () => { box.checked ? shown.add(name) : shown.delete(name); draw(); });
  }
  search.addEventListener("input", () => place.querySelectorAll("label").forEach((label) => {
    label.hidden = !label.textContent.includes(search.value);
    label.style.display = label.hidden ? "none" : "";
  }));
  find("losses").hidden = !names.length;
}

function showMembers() {
  const data = single && details ? details.members : null;
  find("members").hidden = !data;
  if (!data) return false;
  for (const id of ["axis", "learning", "rates", "losses", "time"]) find(id).hidden = true;
  members.show(find("members"), data);
  return true;
}

function draw() {
  charts.clear();
  if (showMembers()) return;
  showLearning();
  showCharts("rates", RATES.filter(([name]) => runs.some((run) => run.metrics[name])));
  showCharts("losses", [...shown].map((name) => [name, name]));
}

function table(place, heads, rows, numbers = []) {
  const scroll = add(place, "div", null, { className: "scroll" }), body = add(scroll, "table");
  if (heads) { const row = add(body, "tr"); heads.forEach((head) => add(row, "th", head)); }
  for (const cells of rows) {
    const row = add(body, "tr");
    cells.forEach((cell, i) => add(row, "td", cell, { className: numbers.includes(i) ? "number" : "" }));
  }
}

function showTime() {
  const place = find("time"), parts = details ? details.time : [], whole = parts.reduce((sum, part) => sum + (part.beside ? 0 : part.seconds), 0);
  place.hidden = !whole;
  if (!whole) return;
  const bar = add(place, "div", null, { id: "bar" }), body = add(add(place, "div", null, { className: "scroll" }), "table");
  bar.setAttribute("aria-hidden", "true");
  parts.forEach(({ label, seconds, beside }, i) => {
    const share = seconds / whole, row = add(body, "tr"), color = charts.color([7, 3, 5, 0, 1, 6, 2][i % 7]);
    const piece = add(bar, "div", null, { title: label });
    if (beside) piece.remove();
    piece.style.cssText = `flex:${share};background:${color}`;
    add(add(row, "td"), "span", null, { className: "swatch" }).style.background = color;
    row.firstChild.append(label);
    add(row, "td", seconds < 100 ? `${seconds.toFixed(1)} s` : clock(seconds), { className: "number" });
    add(row, "td", `${(100 * share).toFixed(1)} %`, { className: "number" });
  });
}

function showEpisode() {
  const place = find("episode");
  place.hidden = !details || !(details.episode || details.animation);
  if (place.hidden) return;
  if (!details.episode) return add(place, "img", null, { src: details.animation, alt: "The last episode, animated" });
  const button = add(place, "button", "Play the last episode", { type: "button" });
  button.addEventListener("click", () => {
    const frame = add(place, "iframe", null, { title: "The last episode" });
    frame.setAttribute("sandbox", "allow-scripts");
    frame.srcdoc = details.episode;
    button.remove();
  });
}

function showRows(id, rows, heads, folded) {
  const place = find(id);
  place.hidden = !rows.length;
  if (!rows.length) return;
  if (!folded) return table(place, heads, rows);
  const fold = add(place, "details");
  add(fold, "summary", place.querySelector("h2").textContent);
  place.querySelector("h2").remove();
  table(fold, heads, rows);
}

function showCommands() {
  const place = find("commands"), rows = details ? details.members?.commands || details.commands : [];
  place.hidden = !rows.length;
  for (const [purpose, text] of rows) {
    const line = add(place, "div", null, { className: "command" });
    add(line, "b", purpose); add(line, "code", text);
    const button = add(line, "button", "copy", { type: "button" });
    button.setAttribute("aria-label", `copy the command to ${purpose}`);
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(text).then(() => { button.textContent = "copied"; }, () => { button.textContent = "select it"; });
    });
  }
}

function showDetails() {
  showTime(); showEpisode(); showCommands();
  find("graph").hidden = !details || !details.graph;
  if (details && details.graph) add(find("graph"), "img", null, { src: details.graph, alt: "The run's fragments and the devices that they run on" });
  find("lines").hidden = !details || !details.lines.length;
  if (details) add(find("lines"), "pre", details.lines.join("\n"));
  showRows("differing", content.differing, ["setting", ...runs.map((run) => run.name)]);
  showRows("settings", details ? details.settings : [], ["setting", "value", "from"]);
  showRows("machine", details ? details.machine : [], null, true);
}

document.querySelectorAll("#axis button").forEach((button) => button.addEventListener("click", () => {
  axis = button.dataset.axis;
  document.querySelectorAll("#axis button").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
  charts.forgetZoom();
  draw();
}));
charts.dark.addEventListener("change", draw);
showHead();
showFigures();
showChoice();
showDetails();
draw();
