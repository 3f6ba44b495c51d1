"use strict";
(() => {
  const read = (name) => JSON.parse(document.getElementById(name).textContent);
  const figures = read("figures"), themes = read("themes");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => themes[dark.matches ? "dark" : "light"];
  // A finger scrolls the page; a mouse may drag a part of a chart to see it larger.
  const dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
  const drawn = new Set();

  const draw = (place) => {
    if (drawn.has(place)) return;
    drawn.add(place);
    const { data, layout } = figures[place.dataset.figure];
    Plotly.newPlot(place, data, { ...layout, dragmode, template: theme() }, { responsive: true, displayModeBar: false });
  };

  // Those far below are drawn when somebody comes near: a phone shows the first ones sooner.
  const near = new IntersectionObserver(
    (seen) => seen.filter((each) => each.isIntersecting).forEach((each) => draw(each.target)),
    { rootMargin: "600px" },
  );
  const places = document.querySelectorAll(".chart");
  places.forEach((place) => near.observe(place));
  addEventListener("beforeprint", () => places.forEach(draw));
  dark.addEventListener("change", () => drawn.forEach((place) => Plotly.relayout(place, { template: theme() })));
})();
