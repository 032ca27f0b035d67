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
  const put = (kind, word) => {
    const last = pieces.at(-1);
    if (last?.kind === kind) last.text += ` ${word}`;
    else pieces.push({ kind, text: word });
  };
  let [i, j] = [0, 0];
  while (i < left.length || j < right.length) {
    if (i < left.length && j < right.length && left[i] === right[j]) {
      put("kept", left[i]);
      i += 1;
      j += 1;
    } else if (j === right.length || (i < left.length && lengths[i + 1][j] >= lengths[i][j + 1])) {
      put("removed", left[i]);
      i += 1;
    } else {
      put("added", right[j]);
      j += 1;
    }
  }
  return pieces;
}
