"use strict";
// What both pages share: how rows arrive, and how they are shown. Text of a run folder goes into a page as
// textContent only.

const SYMBOLS = {
  compiling: "◔", training: "▶", evaluating: "◆", done: "✓", stopped: "■", failed: "✗", dead: "†", unknown: "?",
};
const SILENT_MS = 30_000; // three heartbeats of the server
const AGAIN_MS = 3000;

const CHART = { height: 300, legend: true };

const byId = id => document.getElementById(id);

const dayFormat = new Intl.DateTimeFormat(undefined, {
  month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false,
});
const day = known(seconds => dayFormat.format(seconds * 1000));

const share = row => row.total_steps ? Math.min((row.env_steps ?? 0) / row.total_steps, 1) : 0;
const progress = row => `${si(row.env_steps ?? 0)} / ${si(row.total_steps)}`;
const address = name => `/run/${name.split("/").map(encodeURIComponent).join("/")}/`;

function element(kind, text = "", className = "") {
  const made = document.createElement(kind);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function showState(place, row) {
  const symbol = element("span", SYMBOLS[row.state], "symbol");
  symbol.ariaHidden = "true";
  place.replaceChildren(symbol, element("span", row.state));
  place.className = row.state;
  place.title = row.error;
}

// Adds the metrics of the environments to the curves that can be drawn.
function offerMetrics(rows) {
  const there = new Set([...byId("of").options].map(option => option.value));
  for (const name of new Set(rows.flatMap(row => Object.keys(row.eval_metrics)))) {
    for (const [kind, where] of [["eval", "of greedy episodes"], ["train", "while training"]]) {
      const value = `${kind} env/${name}`;
      if (there.has(value)) continue;
      const option = element("option", `${name} ${where}`);
      option.value = value;
      byId("of").append(option);
    }
  }
}

// curves: [{name, number, steps, wall_s, mean, low, high}]; number selects the color. nothing: text without curves.
function showCurves(chart, curves, by, nothing) {
  const some = curves.filter(curve => curve.mean.length);
  byId("empty").textContent = nothing;
  byId("empty").hidden = some.length > 0;
  byId("chart").hidden = !some.length;
  if (!some.length) return;
  const axis = by === "time" ? "wall_s" : "env_steps";
  chart.show(some.map(({ name, number, steps, wall_s, mean, low, high }) => (
    { label: name, x: by === "time" ? wall_s : steps, y: mean, low, high, points: true, color: number, dash: charts.dash(number) }
  )), axis);
}

async function ask(path, query) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`);
  return answer.ok ? answer.json() : null;
}

// Calls update({rows, gone}, whole) when rows change; whole: these are all rows. Shows a note when no server responds.
function follow(query, update) {
  const source = new EventSource(`/events${query}`);
  let timer = 0;
  const lost = () => { byId("gone").hidden = false; };
  const heard = () => {
    byId("gone").hidden = true;
    clearTimeout(timer);
    timer = setTimeout(lost, SILENT_MS);
  };
  source.addEventListener("beat", heard);
  for (const kind of ["list", "change"]) {
    source.addEventListener(kind, event => { heard(); update(JSON.parse(event.data), kind === "list"); });
  }
  source.onerror = () => {
    lost();
    clearTimeout(timer);
    if (source.readyState === EventSource.CLOSED) setTimeout(() => follow(query, update), AGAIN_MS);
  };
}
