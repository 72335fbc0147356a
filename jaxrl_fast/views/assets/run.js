"use strict";
// One run: its figures, its curve and what it printed.

const name = location.pathname.slice("/run/".length, location.pathname.lastIndexOf("/")).split("/").map(decodeURIComponent).join("/");
const chart = new charts.Chart(byId("chart"), CHART);
let curve = null;

function showFigures(row) {
  const figures = {
    environment: row.env || UNKNOWN,
    algorithm: row.algo || UNKNOWN,
    seeds: row.num_seeds ?? UNKNOWN,
    steps: progress(row),
    return: row.unevaluated || score(row.eval_return),
    best: score(row.best_return),
    ...(row.eval_success === null ? {} : { success: percent(row.eval_success) }),
    ...Object.fromEntries(Object.entries(row.eval_metrics).map(([metric, value]) => [metric, score(value)])),
    "return while training": score(row.episode_return),
    "steps/s": si(row.sampling_hz),
    "updates/s": si(row.update_hz),
    "update frames/s": si(row.update_frame_hz),
    time: clock(row.elapsed_s),
    left: clock(row.left_s),
    started: day(row.started_at),
  };
  byId("figures").replaceChildren(...Object.entries(figures).map(([label, value]) => {
    const pair = element("div");
    pair.append(element("dt", label), element("dd", value));
    return pair;
  }));
  document.body.classList.toggle("without-success", row.eval_success === null);
  showState(byId("state"), row);
  byId("error").textContent = row.error;
  byId("error").hidden = !row.error;
}

async function showDetails() {
  const details = await ask("/api/run", { run: name }).catch(() => null);
  if (!details) return;
  byId("lines").textContent = details.lines.join("\n");
  byId("printed").hidden = !details.lines.length;
  byId("files").replaceChildren(...details.files.map(file => {
    const link = element("a", file);
    link.href = file;
    return link;
  }));
  byId("files").hidden = !details.files.length;
}

async function showMembers() {
  const data = await ask("/api/members", { run: name }).catch(() => null);
  byId("members").hidden = !data?.members;
  byId("curve").hidden = Boolean(data?.members);
  if (data?.members) members.show(byId("members"), data);
}

async function showCurve() {
  curve = await ask("/api/curve", { run: name, of: byId("of").value }).catch(() => null) ?? curve;
  draw();
}

function draw() {
  showCurves(chart, curve ? [{ ...curve, number: 0 }] : [], byId("by").value, "Nothing to draw yet: no data.");
}

async function update({ rows: [row] }) {
  if (!row) {
    byId("state").textContent = "its folder is gone";
    return;
  }
  showFigures(row);
  offerMetrics([row]);
  await Promise.all([showDetails(), showCurve(), showMembers()]);
}

document.title = name;
byId("name").textContent = name;
byId("of").onchange = showCurve;
byId("by").onchange = () => { charts.forgetZoom(); draw(); };
charts.dark.addEventListener("change", () => { draw(); showMembers(); });
follow(`?${new URLSearchParams({ run: name })}`, update);
