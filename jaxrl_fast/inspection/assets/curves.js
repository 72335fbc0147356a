"use strict";
// Several runs in one chart: lines with their ranges, by steps or by seconds.

const LIGHT = ["#b8481a", "#0072b2", "#00805d", "#a8467f", "#7a6200", "#3d3d9e", "#55616e", "#8a1c1c"];
const DARK = ["#ff9d66", "#5cb8f0", "#3fd0a4", "#f0a3cf", "#e8d44d", "#a8a4ff", "#a3afbb", "#ff8080"];
const DASHES = [[], [8, 4], [2, 3]];
const HEIGHT = 300;
const X_AXIS = { size: 26, gap: 6, labelSize: 20, labelGap: 2, labelFont: "13px system-ui, sans-serif" };
const FEW = 60; // points of a line that are marked

const dark = matchMedia("(prefers-color-scheme: dark)");
const colorOf = number => (dark.matches ? DARK : LIGHT)[number % LIGHT.length];
const dashOf = number => DASHES[Math.floor(number / LIGHT.length) % DASHES.length];
const ofPage = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

class Chart {
  constructor(place, note) {
    this.place = place;
    this.note = note;
    this.plot = null;
    this.shape = "";
    this.shown = [[], "steps", ""];
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(place);
    dark.addEventListener("change", () => { this.shape = ""; this.show(...this.shown); });
  }

  size() {
    return { width: Math.max(this.place.clientWidth, 200), height: HEIGHT };
  }

  // curves: [{name, number, steps, wall_s, mean, low, high}]; number chooses the color. nothing: what to say without.
  show(curves, by, nothing) {
    this.shown = [curves, by, nothing];
    const some = curves.filter(curve => curve.mean.length);
    this.note.textContent = nothing;
    this.note.hidden = some.length > 0;
    this.place.hidden = !some.length;
    if (!some.length) return;
    const tables = some.map(curve => tableOf(curve, by));
    const data = uPlot.join(tables);
    const shape = JSON.stringify([by, ...some.map(curve => [curve.name, curve.number])]);
    if (shape === this.shape) this.update(data);
    else this.make(data, some, by);
    this.shape = shape;
  }

  // As more arrives, whoever has zoomed in stays where he is.
  update(data) {
    const { min, max } = this.plot.scales.x, before = this.plot.data[0];
    const whole = min <= before[0] && max >= before.at(-1);
    this.plot.setData(data, whole);
    if (!whole) this.plot.setScale("x", { min, max });
  }

  make(data, curves, by) {
    this.plot?.destroy();
    this.plot = new uPlot({ ...this.size(), ...optionsOf(curves, by) }, data, this.place);
  }
}

function tableOf(curve, by) {
  const places = (by === "time" ? curve.wall_s : curve.steps).map((x, row) => [x, row]).filter(([x]) => x !== null);
  places.sort(([one], [other]) => one - other);
  const different = places.filter(([x], row) => row === 0 || x > places[row - 1][0]);
  const column = values => different.map(([, row]) => values[row] ?? null);
  return [different.map(([x]) => x), column(curve.mean), column(curve.low), column(curve.high)];
}

function optionsOf(curves, by) {
  const write = by === "time" ? clock : si;
  const axis = { stroke: ofPage("--quiet"), grid: { stroke: ofPage("--edge"), width: 1 }, ticks: { show: false } };
  const series = curves.flatMap(({ name, number, mean }) => {
    const edge = { class: "edge", spanGaps: true, points: { show: false } };
    const line = {
      label: name, stroke: colorOf(number), dash: dashOf(number), width: 2, spanGaps: true,
      points: { show: mean.length <= FEW, size: 5, fill: colorOf(number) },
      value: (plot, value) => score(value),
    };
    return [line, edge, edge];
  });
  return {
    scales: { x: { time: false } },
    axes: [
      { ...axis, ...X_AXIS, label: by === "time" ? "time" : "environment steps", values: (plot, xs) => xs.map(write) },
      { ...axis, size: 52, values: (plot, ys) => ys.map(si) },
    ],
    series: [{ label: by, value: (plot, x) => write(x) }, ...series],
    bands: curves.map(({ number }, run) => ({ series: [3 * run + 3, 3 * run + 2], fill: `${colorOf(number)}26` })),
    cursor: { y: false, dataIdx: nearest, points: { size: 8 } },
    legend: { markers: { width: 0, fill: (plot, series) => plot.series[series].stroke() } },
    hooks: { setSeries: [withItsRange] },
  };
}

// Runs were evaluated at different steps: of each the value nearest to the cursor.
function nearest(plot, series, at) {
  const values = plot.data[series], xs = plot.data[0], x = plot.posToVal(plot.cursor.left, "x");
  let before = at, after = at;
  while (before >= 0 && values[before] == null) before--;
  while (after < values.length && values[after] == null) after++;
  if (values[before] == null) return values[after] == null ? at : after;
  return values[after] == null || x - xs[before] <= xs[after] - x ? before : after;
}

// Who hides a line in the legend hides its range.
function withItsRange(plot, series, options) {
  if (options.show === undefined || series % 3 !== 1) return;
  for (const edge of [series + 1, series + 2]) plot.setSeries(edge, { show: options.show });
}
