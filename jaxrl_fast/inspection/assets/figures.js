"use strict";
// What both pages share: how figures are written, and how rows arrive. Text of a run folder goes into a page as
// textContent only.

const SYMBOLS = {
  compiling: "◔", training: "▶", evaluating: "◆", done: "✓", stopped: "■", failed: "✗", dead: "†", unknown: "?",
};
const UNKNOWN = "–";
const SILENT_MS = 30_000; // three heartbeats of the server
const AGAIN_MS = 3000;

const byId = id => document.getElementById(id);
const known = write => value => value === null || value === undefined ? UNKNOWN : write(value);

// Three figures with a unit prefix: 12.3k.
const si = known(value => {
  for (const [limit, prefix] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= limit) return `${Number((value / limit).toPrecision(3))}${prefix}`;
  }
  return String(Number(value.toPrecision(3)));
});

const score = known(value => Math.abs(value) >= 10 ? value.toFixed(1) : String(Number(value.toPrecision(3))));

// m:ss or h:mm:ss.
const clock = known(seconds => {
  const whole = Math.round(seconds), two = number => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
});

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

async function ask(path, query) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`);
  return answer.ok ? answer.json() : null;
}

// Calls update({rows, gone}, whole) as rows change; whole: they are all that there are. Says so when no server answers.
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
