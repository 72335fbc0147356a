"use strict";
// From the data of an episode to objects of three.js, and where its bodies are at a moment.

/** What a browser decodes of base64, as numbers of the given type (little-endian, as every browser's machine is). */
function numbers(text, Type) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Type(bytes.buffer);
}

/** The arrays of an episode and `returns`: the return before each of its `steps + 1` states. */
function decoded(episode) {
  const rewards = numbers(episode.rewards, Float32Array);
  const returns = new Float64Array(rewards.length + 1);
  rewards.forEach((reward, step) => { returns[step + 1] = returns[step] + reward; });
  return {
    rewards,
    returns,
    center: numbers(episode.center, Float32Array),
    offsets: numbers(episode.offsets, Int16Array),
    rotations: numbers(episode.rotations, Int16Array),
  };
}

/** The geometries of each kind of geom that is drawn, with MuJoCo's sizes; axes of round ones are turned from y to z. */
const SHAPES = {
  sphere: ([radius]) => new THREE.SphereGeometry(radius, 32, 20),
  capsule: ([radius, half]) => new THREE.CapsuleGeometry(radius, 2 * half, 12, 28).rotateX(Math.PI / 2),
  ellipsoid: ([x, y, z]) => new THREE.SphereGeometry(1, 32, 20).scale(x, y, z),
  cylinder: ([radius, half]) => new THREE.CylinderGeometry(radius, radius, 2 * half, 36).rotateX(Math.PI / 2),
  box: ([x, y, z]) => new THREE.BoxGeometry(2 * x, 2 * y, 2 * z),
  mesh: (size, mesh) => {
    const indexed = new THREE.BufferGeometry();
    indexed.setAttribute("position", new THREE.BufferAttribute(numbers(mesh.vertices, Float32Array), 3));
    indexed.setIndex(new THREE.BufferAttribute(numbers(mesh.faces, Uint32Array), 1));
    const geometry = indexed.toNonIndexed(); // a separate normal for each triangle, so that edges remain sharp
    geometry.computeVertexNormals();
    return geometry;
  },
};

/** Kinds of geoms that this page does not draw. */
function notDrawn(geoms) {
  return [...new Set(geoms.map((geom) => geom.kind))].filter((kind) => kind !== "plane" && !(kind in SHAPES));
}

/** Place an object in its body's frame. MuJoCo's quaternions begin with w, but three.js's end with it. */
function placed(object, { position, rotation: [w, x, y, z] }) {
  object.position.set(...position);
  object.quaternion.set(x, y, z, w);
  return object;
}

function solid(geom) {
  const material = new THREE.MeshStandardMaterial({ roughness: 0.6 });
  const [red, green, blue, opacity] = geom.color ?? [0, 0, 0, 1];
  material.color.setRGB(red, green, blue, THREE.SRGBColorSpace);
  Object.assign(material, { opacity, transparent: opacity < 1, visible: opacity > 0 });
  const object = new THREE.Mesh(SHAPES[geom.kind](geom.size, geom.mesh), material);
  object.castShadow = object.receiveShadow = opacity > 0;
  object.userData.ownColor = geom.color !== null;
  return placed(object, geom);
}

/** Make a large part of an infinite plane, which `follow` centers at the camera's target. */
function ground(geom, tile) {
  const size = 400 * tile;
  const material = new THREE.MeshStandardMaterial({ roughness: 1 });
  const object = new THREE.Mesh(new THREE.PlaneGeometry(size, size), material);
  object.receiveShadow = true;
  const holder = placed(new THREE.Group(), geom).add(object);
  object.userData.follow = (target) => {
    const here = holder.worldToLocal(target.clone());
    object.position.set(2 * tile * Math.round(here.x / 2 / tile), 2 * tile * Math.round(here.y / 2 / tile), 0);
  };
  object.userData.paint = (texture) => {
    texture.repeat.set(size / 2 / tile, size / 2 / tile);
    Object.assign(material, { map: texture, needsUpdate: true });
  };
  return holder;
}

/** Two tiles by two in two colors. */
function tiles(color, otherColor, anisotropy) {
  const canvas = Object.assign(document.createElement("canvas"), { width: 256, height: 256 });
  const brush = canvas.getContext("2d");
  brush.fillStyle = color;
  brush.fillRect(0, 0, 256, 256);
  brush.fillStyle = otherColor;
  brush.fillRect(0, 0, 128, 128);
  brush.fillRect(128, 128, 128, 128);
  const texture = new THREE.CanvasTexture(canvas);
  texture.wrapS = texture.wrapT = THREE.RepeatWrapping;
  return Object.assign(texture, { anisotropy, colorSpace: THREE.SRGBColorSpace });
}

/** A group for each body, and last one for what never moves, with the geoms in them; planes come with `ground`. */
function bodiesOf(episode) {
  const bodies = Array.from({ length: episode.bodies + 1 }, () => new THREE.Group());
  const geoms = episode.geoms.filter((geom) => geom.kind in SHAPES);
  for (const geom of geoms) bodies.at(geom.body < 0 ? -1 : geom.body).add(solid(geom));
  return bodies;
}

/** Move the bodies to where they are at `moment`, in steps; between two states, to between them. */
function pose(bodies, episode, arrays, moment) {
  const step = Math.min(Math.floor(moment), episode.steps - 1);
  const share = moment - step;
  const unit = episode.reach / 32767;
  const mixed = (array, at, stride) => array[at] + share * (array[at + stride] - array[at]);
  for (let body = 0; body < episode.bodies; body++) {
    const at = step * episode.bodies + body;
    const place = [0, 1, 2].map(
      (axis) => mixed(arrays.center, 3 * step + axis, 3)
        + unit * mixed(arrays.offsets, 3 * at + axis, 3 * episode.bodies));
    bodies[body].position.set(...place);
    const [now, next] = [at, at + episode.bodies].map((index) => {
      const [w, x, y, z] = arrays.rotations.subarray(4 * index, 4 * index + 4);
      return new THREE.Quaternion(x, y, z, w).normalize();
    });
    bodies[body].quaternion.slerpQuaternions(now, next, share);
  }
}

/** What the camera follows: the mean of the bodies, averaged over about a second, so that it does not shake. Near both
 * ends over less, so that a fast body begins and ends in the middle of the picture. */
function pathOf(episode, arrays) {
  const { steps } = episode;
  const path = [0, 1, 2].map((axis) => {
    const sums = new Float64Array(steps + 2);
    for (let step = 0; step <= steps; step++) sums[step + 1] = sums[step] + arrays.center[3 * step + axis];
    return Float64Array.from({ length: steps + 1 }, (_, step) => {
      const half = Math.min(Math.round(0.5 / episode.step_s), step, steps - step);
      return (sums[step + half + 1] - sums[step - half]) / (2 * half + 1);
    });
  });
  return (moment) => {
    const step = Math.floor(moment);
    const next = Math.min(step + 1, steps);
    return new THREE.Vector3(...path.map((axis) => axis[step] + (moment - step) * (axis[next] - axis[step])));
  };
}
