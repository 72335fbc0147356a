"use strict";
// The members of a population: their scores over time and over each setting, the lineage of a population's rates, and a
// table from the best to the worst. Needs numbers.js and charts.js.

const members = (() => {
  const MOST_LINES = 8, MOST_ROWS = 200;
  const SIZE = { width: 330, height: 190, left: 46, right: 12, top: 10, bottom: 34 };
  const STATES = { training: "trains", waiting: "waits at a rung", stopped: "stopped at a rung", finished: "finished", diverged: "diverged" };
  const svgName = "http://www.w3.org/2000/svg";

  let chart = null;

  const named = key => key.replace(/^algo\./, "");
  const shown = value => typeof value === "number" ? si(value) : Array.isArray(value) ? `[${value.join(", ")}]` : String(value);

  function svg(place, tag, attributes, title) {
    const element = document.createElementNS(svgName, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (title) element.append(Object.assign(document.createElementNS(svgName, "title"), { textContent: title }));
    place.append(element);
    return element;
  }

  function html(place, tag, text, properties = {}) {
    const element = Object.assign(document.createElement(tag), properties);
    if (text !== undefined) element.textContent = text;
    place.append(element);
    return element;
  }

  function describe(data, member) {
    const settings = data.settings.map(([key]) => `${named(key)} ${shown(member.point[key])}`).join(", ");
    return `trial ${member.number}: ${score(member.score)} after ${si(member.env_steps)} steps, ${settings}`;
  }

  // A frame with a vertical axis of scores or values, and labels below.
  function frame(place, title, wide = SIZE.width) {
    const box = html(place, "figure", undefined, { className: "plot" });
    html(box, "h3", title);
    const picture = svg(box, "svg", { viewBox: `0 0 ${wide} ${SIZE.height}`, role: "img", "aria-label": title });
    picture.style.maxWidth = `${1.4 * wide}px`;
    svg(picture, "line", { x1: SIZE.left, x2: wide - SIZE.right, y1: SIZE.height - SIZE.bottom, y2: SIZE.height - SIZE.bottom, class: "axis" });
    return picture;
  }

  const text = (place, x, y, anchor, words) => { svg(place, "text", { x, y, "text-anchor": anchor, class: "tick" }).textContent = words; };

  function scale([low, high], from, to) {
    return value => high > low ? from + (value - low) / (high - low) * (to - from) : (from + to) / 2;
  }

  const bounds = values => [Math.min(...values), Math.max(...values)];

  function scoreAxis(picture, range) {
    const y = scale(range, SIZE.height - SIZE.bottom - 4, SIZE.top + 4);
    for (const value of new Set(range)) text(picture, SIZE.left - 5, y(value) + 4, "end", score(value));
    return y;
  }

  // The numbers, or the names, at the ends of a setting's range.
  function ends([, kind, values]) {
    return ["log", "uniform"].includes(kind) ? values.map(value => si(Number(value))) : values.map(shown);
  }

  // Score over one setting; larger points trained longer.
  function overSetting(place, data, setting) {
    const [key] = setting, scored = data.members.filter(member => member.score !== null);
    if (!scored.length) return;
    const picture = frame(place, named(key)), y = scoreAxis(picture, bounds(scored.map(member => member.score)));
    const x = scale([0, 1], SIZE.left + 6, SIZE.width - SIZE.right - 6), most = Math.max(...scored.map(member => member.env_steps));
    const words = ends(setting), list = !["log", "uniform"].includes(setting[1]);
    words.forEach((word, i) => text(picture, x(list ? (i + .5) / words.length : i / Math.max(1, words.length - 1)), SIZE.height - SIZE.bottom + 16,
      list ? "middle" : i ? "end" : "start", word));
    for (const member of [...scored].reverse()) {
      const part = member.env_steps / most;
      svg(picture, "circle", { cx: x(member.shares[key]), cy: y(member.score), r: 2.5 + 3 * part, fill: charts.color(part > .99 ? 0 : 6), "fill-opacity": .75 },
        describe(data, member));
    }
  }

  // A line for each trial through all settings to its score, the best ones in color.
  function parallel(place, data) {
    const scored = data.members.filter(member => member.score !== null), axes = [...data.settings.map(([key]) => key), "score"];
    if (scored.length < 2 || axes.length < 3) return;
    const wide = 120 + 120 * axes.length, picture = frame(place, "all settings together", wide);
    const range = bounds(scored.map(member => member.score)), x = scale([0, axes.length - 1], SIZE.left + 24, wide - 60);
    const y = scale([0, 1], SIZE.height - SIZE.bottom - 4, SIZE.top + 4), place_of = scale(range, 0, 1);
    axes.forEach((key, i) => {
      svg(picture, "line", { x1: x(i), x2: x(i), y1: y(0), y2: y(1), class: "axis" });
      text(picture, x(i), SIZE.height - SIZE.bottom + 16, "middle", named(key));
      const words = key === "score" ? range.map(score) : ends(data.settings[i]);
      text(picture, x(i) + 4, y(0), "start", words[0]); text(picture, x(i) + 4, y(1) + 8, "start", words[words.length - 1]);
    });
    [...scored].reverse().forEach((member, i) => {
      const best = scored.length - i <= Math.max(1, scored.length / 4), heights = axes.map(key => key === "score" ? place_of(member.score) : member.shares[key]);
      svg(picture, "polyline", { points: heights.map((height, at) => `${x(at)},${y(height)}`).join(" "), fill: "none",
        stroke: charts.color(best ? 1 : 7), "stroke-width": best ? 1.8 : .8, "stroke-opacity": best ? .9 : .45 }, describe(data, member));
    });
  }

  // Each member's rate over time; a copy begins at the point of the member that it continues.
  function lineage(place, data, index) {
    const [key, kind, values] = data.settings[index], total = data.segments * data.segment_steps;
    if (!["log", "uniform"].includes(kind) || !data.lineage.some(row => row[2] !== null)) return;
    const picture = frame(place, `${named(key)} over time`), by = kind === "log" ? Math.log : Number;
    const x = scale([0, total], SIZE.left, SIZE.width - SIZE.right), y = scale(values.map(value => by(Number(value))), SIZE.height - SIZE.bottom - 4, SIZE.top + 4);
    values.forEach((value, i) => text(picture, SIZE.left - 5, y(by(Number(value))) + (i ? 8 : 0), "end", si(Number(value))));
    text(picture, SIZE.width - SIZE.right, SIZE.height - SIZE.bottom + 16, "end", `${si(total)} steps`);
    const best = data.members[0]?.number;
    for (const member of data.members) {
      const rows = data.lineage.filter(row => row[1] === member.number), stroke = charts.color(member.number === best ? 1 : 7);
      rows.forEach(([steps, , parent, point], i) => {
        const end = rows[i + 1]?.[0] ?? member.env_steps, height = y(by(point[index])), strong = member.number === best;
        svg(picture, "line", { x1: x(steps), x2: x(Math.max(end, steps)), y1: height, y2: height, stroke, "stroke-width": strong ? 2.2 : 1, "stroke-opacity": strong ? 1 : .6 },
          `member ${member.number}: ${si(point[index])} from ${si(steps)} steps`);
        if (parent === null) return;
        const before = data.lineage.filter(row => row[1] === parent && row[0] < steps).at(-1);
        if (before) svg(picture, "line", { x1: x(steps), x2: x(steps), y1: y(by(before[3][index])), y2: height, stroke, "stroke-dasharray": "2 3", "stroke-opacity": .8 });
      });
    }
  }

  function table(place, data) {
    const box = html(html(place, "div", undefined, { className: "scroll" }), "table"), head = html(box, "tr");
    const copies = data.members.some(member => member.parent !== null);
    const names = ["", "trial", "", "score", "steps", "seconds", ...data.settings.map(([key]) => named(key)), ...copies ? ["copied from"] : []];
    names.forEach(name => html(head, "th", name));
    data.members.slice(0, MOST_ROWS).forEach((member, rank) => {
      const row = html(box, "tr", undefined, { className: member.status });
      const cells = [rank + 1, member.number, STATES[member.status] || member.status, score(member.score), si(member.env_steps), member.seconds,
                     ...data.settings.map(([key]) => shown(member.point[key])), ...copies ? [member.parent ?? ""] : []];
      cells.forEach(cell => html(row, "td", cell));
    });
    if (data.members.length > MOST_ROWS) html(place, "p", `and ${data.members.length - MOST_ROWS} more in trials.csv`, { className: "hint" });
  }

  function curves(place, data) {
    const lines = data.members.filter(member => member.scores.some(value => value !== null)).slice(0, MOST_LINES).map((member, rank) => ({
      label: `trial ${member.number}`, x: member.scores.map((_, segment) => (segment + 1) * member.segment_steps), y: member.scores,
      color: rank, dash: charts.dash(rank), points: true }));
    if (!lines.length) return;
    chart = new charts.Chart(place, { title: `scores of the best ${lines.length}`, height: 230, legend: true });
    chart.show(lines, "env_steps");
  }

  // Show everything in an empty place.
  function show(place, data) {
    if (chart) charts.drop(chart);
    chart = null;
    place.replaceChildren();
    html(place, "h2", data.lineage.some(row => row[2] !== null) ? "Members, the best first" : "Trials, the best first");
    const trains = data.members.filter(member => member.status === "training").map(member => member.number);
    if (trains.length) html(place, "p", `in training now: ${trains.join(", ")}`, { className: "hint" });
    table(place, data);
    curves(place, data);
    const grid = html(place, "div", undefined, { className: "grid" });
    data.settings.forEach(setting => overSetting(grid, data, setting));
    data.settings.forEach((_, index) => lineage(grid, data, index));
    parallel(place, data);
  }

  return { show };
})();
