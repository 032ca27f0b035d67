"use strict";

// Versions: versions.json lies in the folder above this version. Without it, as in a build that is opened from disk,
// the list has this version only.
const select = document.getElementById("version");
const root = new URL(select.dataset.root, location.href);

async function listVersions() {
  const response = await fetch(new URL("../versions.json", root));
  const others = (response.ok ? await response.json() : []).filter((version) => version !== select.value);
  select.append(...others.map((version) => new Option(version)));
}

// Opens the same page of the other version, or its first page where it has no such page.
async function openVersion() {
  const other = new URL(`../${select.value}/`, root);
  const page = new URL(select.dataset.page, other);
  const response = await fetch(page, { method: "HEAD" });
  location.href = response.ok ? page : other;
}

if (location.protocol !== "file:") {
  listVersions();
  select.addEventListener("change", openVersion);
}

// The keyboard scrolls code and tables that are wider than the page only if they can have the focus.
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
document.querySelectorAll("pre, .table-wrapper, .cell_output .text_html").forEach((region) => sizes.observe(region));
