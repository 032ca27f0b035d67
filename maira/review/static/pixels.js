/** Gray values of images, fetched in the resolution that is needed and kept for a while. */

import { Refused } from "./api.js";

// A page shows three images, in two resolutions each, and fetches those of up to three studies ahead.
const MOST = 18;

// By address, the one of the latest use last: `{pixels, controller}`, without a controller when it is here.
const kept = new Map();

/** Gray values of an image with at least some pixels on the longest side. */
export function fetchPixels(url, longest) {
  // Few resolutions, so that what was fetched ahead fits a window that has changed a little.
  const key = `${url}?longest=${2 ** Math.ceil(Math.log2(Math.max(longest, 512)))}`;
  const present = kept.get(key) ?? request(key);
  kept.delete(key);
  kept.set(key, present);
  if (kept.size > MOST) kept.delete(kept.keys().next().value);
  return present.pixels;
}

/** Cancel the requests for images that are no longer needed, so that they do not delay others. */
export function cancelRequests(isNeeded) {
  for (const [key, { controller }] of kept) {
    if (!controller || isNeeded(key)) continue;
    kept.delete(key);
    controller.abort();
  }
}

function request(key) {
  const controller = new AbortController();
  const present = { controller };
  present.pixels = read(key, controller.signal).catch((error) => {
    if (kept.get(key) === present) kept.delete(key);
    throw error;
  }).finally(() => {
    present.controller = null;
  });
  return present;
}

async function read(path, signal) {
  const response = await fetch(path, { credentials: "same-origin", signal });
  if (!response.ok) throw new Refused(response.status, await response.json().catch(() => null));
  const { level, ...info } = JSON.parse(response.headers.get("image-info"));
  return { values: new Uint16Array(await response.arrayBuffer()), ...level, info };
}

/** Draw the visible part of an image whose place (left, top, width, height) is in pixels of the canvas. */
export function drawPixels(canvas, { values, columns, rows, step, info }, colors, [left, top, width, height]) {
  const [across, down] = [(width * step) / info.columns, (height * step) / info.rows];
  const [x, y] = [Math.max(0, Math.floor(-left / across)), Math.max(0, Math.floor(-top / down))];
  const count = Math.min(columns, Math.ceil((canvas.width - left) / across)) - x;
  const lines = Math.min(rows, Math.ceil((canvas.height - top) / down)) - y;
  if (!(count > 0 && lines > 0)) return;
  const part = new ImageData(count, lines);
  const shown = new Uint32Array(part.data.buffer);
  for (let line = 0, at = 0; line < lines; line += 1) {
    const start = (y + line) * columns + x;
    for (let column = 0; column < count; column += 1, at += 1) shown[at] = colors[values[start + column]];
  }
  const source = new OffscreenCanvas(count, lines);
  source.getContext("2d").putImageData(part, 0, 0);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(source, left + x * across, top + y * down, count * across, lines * down);
}

/** Colors (as in `ImageData`, little-endian) of all values in a window. */
export function windowColors({ scale, offset, is_inverted: isNegative }, { center, width, isInverted }) {
  const colors = new Uint32Array(2 ** 16);
  for (let value = 0; value < colors.length; value += 1) {
    const share = Math.min(1, Math.max(0, (value * scale + offset - center) / width + 0.5));
    const gray = Math.round(255 * (isInverted !== isNegative ? 1 - share : share));
    colors[value] = 0xff000000 + gray * 0x010101;
  }
  return colors;
}
