// What the viewer uses of three.js. `make viewer-assets` bundles it into three.min.js, as the global THREE.
export {
  BoxGeometry, BufferAttribute, BufferGeometry, CanvasTexture, CapsuleGeometry, Color, CylinderGeometry,
  DirectionalLight, Fog, Group, HemisphereLight, Mesh, MeshStandardMaterial, PerspectiveCamera, PlaneGeometry,
  Quaternion, RepeatWrapping, Scene, Sphere, SphereGeometry, SRGBColorSpace, Box3, Vector3, WebGLRenderer,
} from "three";
export { OrbitControls } from "three/addons/controls/OrbitControls.js";
