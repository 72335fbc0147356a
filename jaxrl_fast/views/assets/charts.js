"use strict";
// The charts of all pages: lines with their ranges, by steps ("env_steps") or by seconds ("wall_s"). The charts of a page
// share zoom and cursor. The colors of Okabe and Ito are distinguishable for color-blind people; runs also differ by
// dashes. Needs numbers.js.

const charts = (() => {
  const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#e69f00", "#555555"];
  const DARK = ["#56b4e9", "#ff8c42", "#2fd0a0", "#e8a6cb", "#f0e442", "#7fb7ff", "#e69f00", "#bbbbbb"];
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  const FEW = 60; // so many points of a line are marked, if they are to be
  const FIGURES = 4;
  const X_SIZE = 30;
  const X_LABEL = { size: 26, gap: 6, labelSize: 20, labelGap: 2, labelFont: "13px system-ui, sans-serif" };

  const dark = matchMedia("(prefers-color-scheme: dark)"); // pages draw again as it changes
  const open = new Set();
  let zoom = null, zooming = false;

  const color = number => (dark.matches ? DARK : LIGHT)[number % LIGHT.length];
  const dash = number => DASHES[Math.floor(number / 2) % DASHES.length];
  const ofPage = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = value => si(value, FIGURES);

  const resized = new ResizeObserver(() => {
    for (const { box, plot } of open) {
      if (plot && box.clientWidth && box.clientWidth !== plot.width) plot.setSize({ width: box.clientWidth, height: plot.height });
    }
  });

  class Chart {
    // options: title, height; fromZero: the vertical axis begins there; top: it ends there; until: the end of
    // a first part of the horizontal axis, which is shaded; legend: names below, which show the values at
    // the cursor and hide lines, and a name for the horizontal axis. Without it one line above has the values.
    constructor(place, options) {
      this.options = options;
      this.plot = null;
      this.shape = "";
      this.box = document.createElement("div");
      this.box.className = "chart";
      this.read = document.createElement("div");
      this.read.className = "read";
      if (options.title) this.box.append(Object.assign(document.createElement("h3"), { textContent: options.title }));
      if (!options.legend) this.box.append(this.read);
      place.append(this.box);
      open.add(this);
      resized.observe(this.box);
    }

    // lines: [{label, x, y, low, high, color, dash, width, points, quiet}]; color is a number, points:
    // mark them.
    show(lines, axis) {
      const tables = lines.map(line => tableOf(line));
      const data = tables.length ? uPlot.join(tables) : [[]];
      const shape = JSON.stringify([axis, dark.matches, ...lines.map(line => [line.label, line.color, Boolean(line.low?.length)])]);
      if (this.plot && shape === this.shape) this.update(data);
      else this.make(data, lines, axis);
      this.shape = shape;
    }

    // New data does not change the zoom.
    update(data) {
      const { min, max } = this.plot.scales.x, before = this.plot.data[0];
      const whole = min <= before[0] && max >= before.at(-1);
      this.plot.setData(data, whole);
      if (!whole) this.plot.setScale("x", { min, max });
    }

    make(data, lines, axis) {
      this.plot?.destroy();
      const size = { width: Math.max(this.box.clientWidth, 200), height: this.options.height };
      this.plot = new uPlot({ ...size, ...optionsOf(this, lines, axis) }, data, this.box);
      if (zoom) this.plot.setScale("x", zoom);
    }
  }

  // Columns of a line, the earliest first and each place once, as uPlot joins them.
  function tableOf({ x, y, low, high }) {
    const rows = x.map((at, row) => [at, row]).filter(([at]) => at !== null);
    rows.sort(([one], [other]) => one - other);
    const kept = rows.filter(([at], row) => row === 0 || at > rows[row - 1][0]);
    const column = values => kept.map(([, row]) => values[row] ?? null);
    return [kept.map(([at]) => at), column(y), ...(low?.length ? [column(low), column(high)] : [])];
  }

  function optionsOf(chart, lines, axis) {
    const { legend, fromZero, top, until } = chart.options, write = axis === "wall_s" ? clock : short;
    const style = { stroke: ofPage("--quiet"), grid: { stroke: ofPage("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const name = legend ? { ...X_LABEL, label: axis === "wall_s" ? "time" : "environment steps" } : {};
    const { series, bands } = drawn(lines);
    return {
      series: [{ label: axis === "wall_s" ? "time" : "steps", value: (plot, x) => known(write)(x) }, ...series],
      bands,
      scales: { x: { time: false }, ...(fromZero ? { y: { range: (plot, low, high) => [0, 1.05 * (top || high || 1)] } } : {}) },
      axes: [
        { ...style, space: 70, size: X_SIZE, ...name, values: (plot, xs) => xs.map(x => write(x)) },
        { ...style, size: 52, values: (plot, ys) => ys.map(short) },
      ],
      cursor: { sync: { key: "page" }, drag: { x: true, y: false }, y: false, dataIdx: nearest, points: { size: 7 } },
      legend: { show: Boolean(legend), markers: { width: 0, fill: (plot, number) => plot.series[number].stroke() } },
      hooks: {
        drawClear: until ? [plot => shade(plot, until)] : [],
        setCursor: [plot => { chart.read.textContent = reading(plot, axis); }],
        setScale: [(plot, key) => { if (key === "x") zoomAll(plot); }],
        setSeries: [withItsRange],
      },
    };
  }

  function shade(plot, end) {
    const { ctx, bbox } = plot, right = Math.min(plot.valToPos(end, "x", true), bbox.left + bbox.width);
    if (!(right > bbox.left)) return;
    ctx.save();
    ctx.fillStyle = ofPage("--grid");
    ctx.fillRect(bbox.left, bbox.top, right - bbox.left, bbox.height);
    ctx.restore();
  }

  // Each line is one series, or three where it has a range; ranges: the numbers of those two.
  function drawn(lines) {
    const series = [], bands = [];
    for (const line of lines) {
      const stroke = color(line.color), number = series.length + 1;
      const count = line.y.filter(value => value != null).length;
      const ranged = Boolean(line.low?.length), edge = { class: "edge", spanGaps: true, points: { show: false } };
      series.push({
        label: line.label, stroke, width: line.width ?? 2, dash: line.dash, alpha: line.quiet ? .45 : 1, spanGaps: true,
        points: { show: count < 2 || (Boolean(line.points) && count <= FEW), size: 5, fill: stroke }, value: (plot, value) => score(value),
        read: !line.quiet, ranges: ranged ? [number + 1, number + 2] : [],
      });
      if (ranged) series.push(edge, edge);
      if (ranged) bands.push({ series: [number + 2, number + 1], fill: `${stroke}2e` });
    }
    return { series, bands };
  }

  // Lines have their points at different steps: of each the one nearest to the cursor.
  function nearest(plot, series, at) {
    const values = plot.data[series], xs = plot.data[0], x = plot.posToVal(plot.cursor.left, "x");
    let before = at, after = at;
    while (before >= 0 && values[before] == null) before--;
    while (after < values.length && values[after] == null) after++;
    if (values[before] == null) return values[after] == null ? at : after;
    return values[after] == null || x - xs[before] <= xs[after] - x ? before : after;
  }

  function reading(plot, axis) {
    const at = plot.cursor.idx;
    if (at == null) return "";
    const read = plot.series.filter(series => series.read);
    const values = plot.series.flatMap((series, number) => {
      const value = series.read ? plot.data[number][plot.cursor.idxs[number]] : null;
      return value == null ? [] : [read.length > 1 ? `${series.label} ${short(value)}` : short(value)];
    });
    const x = plot.data[0][at];
    return [axis === "wall_s" ? clock(x) : `${Math.round(x).toLocaleString("en")} steps`, ...values].join(" · ");
  }

  // Who hides a line in the legend hides its range.
  function withItsRange(plot, number, options) {
    if (options.show === undefined || number === null) return;
    for (const edge of plot.series[number].ranges ?? []) plot.setSeries(edge, { show: options.show });
  }

  function zoomAll(source) {
    const xs = source.data[0];
    if (zooming || !xs.length) return;
    const before = zoom, { min, max } = source.scales.x;
    zoom = min > xs[0] || max < xs.at(-1) ? { min, max } : null;
    if (!zoom && !before) return;
    zooming = true;
    for (const { plot } of open) {
      if (plot && plot !== source && plot.data[0].length > 1) plot.setScale("x", zoom ?? { min: plot.data[0][0], max: plot.data[0].at(-1) });
    }
    zooming = false;
  }

  function drop(chart) {
    chart.plot?.destroy();
    resized.unobserve(chart.box);
    chart.box.remove();
    open.delete(chart);
  }

  function clear() { [...open].forEach(drop); }

  function forgetZoom() { zoom = null; }

  return { Chart, clear, drop, forgetZoom, color, dash, dark };
})();
