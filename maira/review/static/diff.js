/** Word differences of two texts. */

/** The words of both texts in order, each unchanged, added or removed (longest common subsequence). */
export function diffWords(before, now) {
  const [left, right] = [before, now].map((text) => text.split(/\s+/).filter(Boolean));
  const lengths = Array.from({ length: left.length + 1 }, () => new Uint16Array(right.length + 1));
  for (let i = left.length - 1; i >= 0; i -= 1) {
    for (let j = right.length - 1; j >= 0; j -= 1) {
      lengths[i][j] = left[i] === right[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const pieces = [];
  for (let i = 0, j = 0; i < left.length || j < right.length;) {
    const isKept = left[i] === right[j];
    const isRemoved = j === right.length || (i < left.length && lengths[i + 1][j] >= lengths[i][j + 1]);
    const kind = isKept ? "kept" : isRemoved ? "removed" : "added";
    const word = kind === "added" ? right[j] : left[i];
    if (pieces.at(-1)?.kind === kind) pieces.at(-1).text += ` ${word}`;
    else pieces.push({ kind, text: word });
    if (kind !== "added") i += 1;
    if (kind !== "removed") j += 1;
  }
  return pieces;
}
