// Charts that share their horizontal axis, cursor and zoom. Colors are those of Okabe and Ito, which colour-blind people
// tell apart; runs differ by dashes, too.
"use strict";

const charts = (() => {
  const light = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#e69f00", "#555555"];
  const dark = ["#56b4e9", "#ff8c42", "#2fd0a0", "#e8a6cb", "#f0e442", "#7fb7ff", "#e69f00", "#bbbbbb"];
  const dashes = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const all = [];
  let zoom = null, inZoom = false;

  const color = (i) => (scheme.matches ? dark : light)[i % light.length];
  const dash = (i) => dashes[Math.floor(i / 2) % dashes.length];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function short(value) {
    if (value == null) return "–";
    const size = Math.abs(value);
    for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (size >= limit) return `${+(value / limit).toPrecision(4)}${unit}`;
    return size && size < 1e-3 ? value.toExponential(2) : `${+value.toPrecision(4)}`;
  }

  function clock(seconds) {
    const s = Math.round(seconds), pad = (x) => String(x).padStart(2, "0");
    const rest = `${pad(Math.floor(s / 60) % 60)}:${pad(s % 60)}`;
    return s >= 3600 ? `${Math.floor(s / 3600)}:${rest}` : rest.replace(/^0/, "");
  }

  const written = (axis, value) => (axis === "wall_s" ? clock(value) : `${Math.round(value).toLocaleString("en")} steps`);

  // lines: {label, x, y, color, dash, width, fill: [low, high], points, quiet}
  function tabled(lines) {
    const tables = [], series = [{}], bands = [];
    for (const line of lines) {
      const at = series.length, columns = [line.x, line.y];
      const stroke = () => color(line.color);
      if (line.fill) {
        const none = { stroke: "transparent", points: { show: false } };
        columns.push(line.fill[1], line.fill[0]);
        bands.push({ series: [at + 1, at + 2], fill: () => color(line.color) + "2e" });
        series.push(own(line, stroke), none, none);
      } else series.push(own(line, stroke));
      tables.push(columns);
    }
    return { data: tables.length ? uPlot.join(tables) : [[]], series, bands };
  }

  function own(line, stroke) {
    const alone = line.y.filter((value) => value != null).length < 2;
    return { label: line.label, stroke, width: line.width || 1.8, dash: line.dash, spanGaps: true, alpha: line.quiet ? .45 : 1,
             points: { show: Boolean(line.points || alone), size: 5 }, read: !line.quiet };
  }

  function make(place, { title, height, lines, axis, fromZero }) {
    const box = document.createElement("div"), name = document.createElement("h3"), read = document.createElement("div");
    box.className = "chart"; read.className = "read"; name.textContent = title;
    box.append(...(title ? [name] : []), read);
    place.append(box);
    const { data, series, bands } = tabled(lines);
    const line = { stroke: () => style("--quiet"), grid: { stroke: () => style("--grid"), width: 1 },
                   ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const chart = new uPlot({
      width: Math.max(200, box.clientWidth), height, series, bands,
      cursor: { sync: { key: "report" }, drag: { x: true, y: false }, points: { size: 7 } },
      legend: { show: false },
      scales: { x: { time: false }, ...(fromZero ? { y: { range: (u, low, high) => [0, 1.05 * (high || 1)] } } : {}) },
      axes: [
        { ...line, space: 70, values: (u, ticks) => ticks.map((t) => (axis === "wall_s" ? clock(t) : short(t))) },
        { ...line, size: 52, values: (u, ticks) => ticks.map(short) },
      ],
      hooks: {
        setCursor: [(u) => { read.textContent = reading(u, axis); }],
        setScale: [(u, key) => { if (key === "x") follow(u); }],
      },
    }, data, box);
    all.push({ chart, box });
    if (zoom) chart.setScale("x", zoom);
    return box;
  }

  function reading(u, axis) {
    const at = u.cursor.idx;
    if (at == null) return "";
    const values = u.series.slice(1).flatMap((series, i) => {
      const value = u.data[i + 1][at];
      return series.read && value != null ? [u.series.filter((s) => s.read).length > 1 ? `${series.label} ${short(value)}` : short(value)] : [];
    });
    return [written(axis, u.data[0][at]), ...values].join(" · ");
  }

  function follow(source) {
    if (inZoom || !source.data[0].length) return;
    const { min, max } = source.scales.x, xs = source.data[0];
    zoom = min > xs[0] || max < xs[xs.length - 1] ? { min, max } : null;
    inZoom = true;
    for (const { chart } of all)
      if (chart !== source && chart.data[0].length > 1)
        chart.setScale("x", zoom || { min: chart.data[0][0], max: chart.data[0][chart.data[0].length - 1] });
    inZoom = false;
  }

  function clear() {
    for (const { chart, box } of all.splice(0)) { chart.destroy(); box.remove(); }
  }

  const resized = new ResizeObserver(() => {
    for (const { chart, box } of all)
      if (box.clientWidth && box.clientWidth !== chart.width) chart.setSize({ width: box.clientWidth, height: chart.height });
  });
  resized.observe(document.body);
  scheme.addEventListener("change", () => all.forEach(({ chart }) => chart.redraw(false, true)));

  function forget() { zoom = null; }

  return { make, clear, forget, color, dash, clock, short };
})();
