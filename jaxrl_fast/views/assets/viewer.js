"use strict";
// The page: a stage for the bodies, a clock, and the controls.

const element = (id) => document.getElementById(id);
const episode = JSON.parse(element("episode").textContent);
const arrays = decoded(episode);
const PLAY = "M8 5v14l11-7z";
const PAUSE = "M6 5h4v14H6zM14 5h4v14h-4z";
const AGAIN = "M12 5V1L7 6l5 5V7a6 6 0 1 1-6 6H4a8 8 0 1 0 8-8z";
const clock = { moment: 0, playing: true, speed: 1, drawn: null };

/** Renderer, camera and light for the bodies. `draw(moment)` shows them; `paint()` takes the colors of the page. */
function stageOf(canvas) {
  const renderer = new THREE.WebGLRenderer({ canvas, antialias: true });
  renderer.shadowMap.enabled = true;
  const scene = new THREE.Scene();
  const bodies = bodiesOf(episode);
  scene.add(...bodies);
  pose(bodies, episode, arrays, 0);
  const around = new THREE.Box3().setFromObject(scene).getBoundingSphere(new THREE.Sphere());
  if (!(around.radius > 0)) around.set(new THREE.Vector3(), 1);
  const tile = around.radius > 0.6 ? 1 : 0.1;
  const grounds = episode.geoms.filter((geom) => geom.kind === "plane").map((geom) => ground(geom, tile));
  if (grounds.length) {
    scene.add(...grounds);
    element("scale").textContent = `, a tile is ${tile === 1 ? "1 m" : "10 cm"} wide`;
  }
  const stage = { renderer, scene, bodies, radius: around.radius, home: around.center, changed: true };
  Object.assign(stage, { grounds: grounds.map((holder) => holder.children[0]), sun: lit(scene, around.radius) });
  Object.assign(stage, cameraOf(stage, canvas));
  return stage;
}

function lit(scene, radius) {
  const sun = new THREE.DirectionalLight(0xffffff, 2.2);
  sun.castShadow = true;
  sun.shadow.mapSize.set(2048, 2048);
  sun.shadow.radius = 4;
  sun.shadow.bias = -0.0004;
  sun.shadow.normalBias = 0.004 * radius;
  Object.assign(sun.shadow.camera, { left: -3 * radius, right: 3 * radius, top: 3 * radius, bottom: -3 * radius });
  Object.assign(sun.shadow.camera, { near: 0.1 * radius, far: 20 * radius });
  scene.add(sun, sun.target, new THREE.HemisphereLight(0xffffff, 0xa8adb5, 2.2));
  return sun;
}

function cameraOf(stage, canvas) {
  const camera = new THREE.PerspectiveCamera(35, 1, 0.02 * stage.radius, 400 * stage.radius);
  camera.up.set(0, 0, 1);
  const controls = new THREE.OrbitControls(camera, canvas);
  Object.assign(controls, { minDistance: stage.radius, maxDistance: 30 * stage.radius, enablePan: false });
  controls.maxPolarAngle = 0.495 * Math.PI; // the ground has no underside
  controls.addEventListener("change", () => { stage.changed = true; });
  controls.addEventListener("start", () => { stage.turned = true; });
  const path = pathOf(episode, arrays);
  // A robot that stands on a table is not followed: only its arm would move the mean.
  const leaves = [0, 1, 2, 3, 4, 5, 6, 7, 8].some(
    (eighth) => path((eighth / 8) * episode.steps).distanceTo(path(0)) > stage.radius);
  const follow = (moment) => stage.home.clone().add(leaves ? path(moment).sub(path(0)) : new THREE.Vector3());
  return { camera, controls, follow };
}

/** Look from the side and a little from above, from as far away as shows all. */
function resetCamera(stage) {
  const { camera, controls } = stage;
  stage.turned = false;
  const half = Math.atan(Math.tan((camera.fov * Math.PI) / 360) * Math.min(1, camera.aspect));
  controls.target.copy(stage.follow(clock.moment));
  camera.position.set(0.45, -1, 0.32).setLength((1.25 * stage.radius) / Math.sin(half)).add(controls.target);
  controls.update();
  stage.changed = true;
}

/** Take the colors of the page, which are others when it is dark. */
function paint(stage) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  stage.scene.background = new THREE.Color(color("--sky"));
  stage.scene.fog = new THREE.Fog(color("--sky"), 1, 10);
  const anisotropy = stage.renderer.capabilities.getMaxAnisotropy();
  for (const plane of stage.grounds) plane.userData.paint(tiles(color("--tile"), color("--other-tile"), anisotropy));
  stage.bodies.forEach((body, index) => {
    // Two alternating colors, so that crossing limbs are distinguishable.
    const tint = color(index === episode.bodies ? "--fixed" : index % 2 ? "--next-body" : "--body");
    for (const part of body.children) if (!part.userData.ownColor) part.material.color.set(tint);
  });
  stage.changed = true;
}

function fit(stage) {
  const { innerWidth, innerHeight, devicePixelRatio } = window;
  stage.renderer.setPixelRatio(Math.min(devicePixelRatio, 2));
  stage.renderer.setSize(innerWidth, innerHeight, false);
  stage.camera.aspect = innerWidth / innerHeight;
  // Center the picture in the area without panels; a narrow panel leaves space next to it.
  const [above, below] = ["facts", "controls"].map((id) => element(id).getBoundingClientRect());
  const top = above.width > innerWidth / 2 ? above.bottom : 0;
  const raised = Math.round((innerHeight - below.top - top) / 2);
  stage.camera.setViewOffset(innerWidth, innerHeight, 0, raised, innerWidth, innerHeight);
  stage.camera.updateProjectionMatrix();
  stage.changed = true;
  if (!stage.turned) resetCamera(stage);
}

/** Draw the bodies; the camera's angle and distance to its target do not change. */
function draw(stage) {
  const { camera, controls, scene, sun, radius } = stage;
  pose(stage.bodies, episode, arrays, clock.moment);
  const moved = stage.follow(clock.moment).sub(controls.target);
  controls.target.add(moved);
  camera.position.add(moved);
  controls.update();
  const away = camera.position.distanceTo(controls.target);
  Object.assign(scene.fog, { near: away + 2 * radius, far: 5 * away + 20 * radius });
  sun.position.set(-2, -3, 6).multiplyScalar(radius).add(controls.target);
  sun.target.position.copy(controls.target);
  for (const plane of stage.grounds) plane.userData.follow(controls.target);
  stage.renderer.render(scene, camera);
}

function tell() {
  const step = Math.floor(clock.moment);
  const atEnd = step === episode.steps;
  element("step").textContent = step.toLocaleString("en");
  element("time").textContent = (clock.moment * episode.step_s).toFixed(2);
  element("return").textContent = arrays.returns[step].toFixed(2);
  element("slider").value = step;
  element("play-icon").setAttribute("d", clock.playing ? PAUSE : atEnd ? AGAIN : PLAY);
  element("play").setAttribute("aria-label", clock.playing ? "Pause" : atEnd ? "Play again" : "Play");
}

function seek(step) {
  clock.moment = Math.min(Math.max(step, 0), episode.steps);
  clock.playing = false;
}

function toggle() {
  if (!clock.playing && clock.moment >= episode.steps) clock.moment = 0;
  clock.playing = !clock.playing;
}

function changeSpeed(places) {
  const choice = element("speed");
  choice.selectedIndex = Math.min(Math.max(choice.selectedIndex + places, 0), choice.length - 1);
  clock.speed = Number(choice.value);
}

function listen(stage) {
  const step = () => Math.floor(clock.moment);
  const keys = {
    " ": toggle,
    ArrowLeft: (event) => seek(Math.ceil(clock.moment) - (event.shiftKey ? 10 : 1)),
    ArrowRight: (event) => seek(step() + (event.shiftKey ? 10 : 1)),
    ArrowUp: () => changeSpeed(1),
    ArrowDown: () => changeSpeed(-1),
    Home: () => seek(0),
    End: () => seek(episode.steps),
    c: () => stage && resetCamera(stage),
  };
  addEventListener("keydown", (event) => {
    const own = event.target.matches("select") || (event.target.matches("button") && event.key === " ");
    if (own || event.ctrlKey || event.altKey || event.metaKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key](event);
  });
  element("play").addEventListener("click", toggle);
  element("slider").addEventListener("input", (event) => seek(Number(event.target.value)));
  element("speed").addEventListener("change", () => changeSpeed(0));
  element("camera").addEventListener("click", keys.c);
  if (!stage) return;
  addEventListener("resize", () => fit(stage));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paint(stage));
}

/** The reward of each step as a line above the slider. */
function drawRewards() {
  const { rewards } = arrays;
  const [low, high] = rewards.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);
  const points = Array.from(rewards, (x, step) => `${step + 1} ${(1 - (x - low) / (high - low || 1)).toFixed(3)}`);
  element("rewards").setAttribute("viewBox", `0 0 ${episode.steps} 1`);
  element("rewards").firstElementChild.setAttribute("d", "M" + points.join("L"));
}

function note(text) {
  element("note").hidden = false;
  element("note").textContent = text;
}

function begin() {
  document.title = `${episode.title} – greedy episode`;
  element("title").textContent = episode.title;
  element("end").textContent = episode.terminated ? "ended by the environment" : "ended by the time limit";
  element("steps").textContent = episode.steps.toLocaleString("en");
  element("slider").max = episode.steps;
  drawRewards();
  const missing = notDrawn(episode.geoms);
  if (missing.length) note(`Not drawn: ${missing.join(", ")}.`);
  try {
    const stage = stageOf(element("view"));
    paint(stage);
    fit(stage);
    return stage;
  } catch (error) {
    note(`No picture: this browser has no WebGL 2 (${error.message})`);
    return null;
  }
}

const stage = begin();
listen(stage);
let before = null;
requestAnimationFrame(function frame(now) {
  // A tab in the background gets no frames: its clock stands still meanwhile.
  const passed = Math.min((now - (before ?? now)) / 1000, 0.25);
  before = now;
  if (clock.playing) {
    clock.moment = Math.min(clock.moment + (passed * clock.speed) / episode.step_s, episode.steps);
    clock.playing = clock.moment < episode.steps;
  }
  const shown = `${clock.moment} ${clock.playing}`;
  if (shown !== clock.drawn) tell();
  if (stage && (shown !== clock.drawn || stage.changed)) {
    stage.changed = false;
    draw(stage);
  }
  clock.drawn = shown;
  requestAnimationFrame(frame);
});
