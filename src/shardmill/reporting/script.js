"use strict";
(() => {
  const tip = document.getElementById("tip");
  const root = document.documentElement;
  let on = null;

  const bytes = (token) =>
    token.dataset.b ||
    Array.from(new TextEncoder().encode(token.textContent), (b) => b.toString(16).padStart(2, "0")).join(" ");

  const hide = () => {
    if (on) on.classList.remove("on");
    on = null;
    tip.hidden = true;
  };

  const show = (token) => {
    if (on) on.classList.remove("on");
    on = token;
    token.classList.add("on");
    tip.textContent = `id ${token.dataset.i} · bytes ${bytes(token)}`;
    tip.hidden = false;
    const box = token.getClientRects()[0] || token.getBoundingClientRect();
    const left = Math.min(box.left, root.clientWidth - tip.offsetWidth - 8);
    const below = box.bottom + 6 + tip.offsetHeight < root.clientHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${below ? box.bottom + 6 : box.top - tip.offsetHeight - 6}px`;
  };

  const tokenOf = (target) => (target instanceof Element ? target.closest(".doc > span") : null);

  document.addEventListener("pointerover", (event) => {
    const token = tokenOf(event.target);
    if (token) show(token);
    else hide();
  });
  document.addEventListener("pointerdown", (event) => {
    const token = tokenOf(event.target);
    if (token) show(token);
  });
  document.addEventListener("scroll", () => { if (on && !on.parentElement.matches(":focus")) hide(); }, true);
  document.addEventListener("focusin", (event) => {
    if (event.target instanceof Element && event.target.matches(".doc") && event.target.matches(":focus-visible")) {
      if (!on || on.parentElement !== event.target) if (event.target.firstElementChild) show(event.target.firstElementChild);
    } else hide();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    const doc = document.activeElement;
    if (!doc || !doc.matches(".doc") || event.ctrlKey || event.metaKey || event.altKey) return;
    const here = on && on.parentElement === doc ? on : null;
    const to = {
      ArrowRight: here ? here.nextElementSibling : doc.firstElementChild,
      ArrowLeft: here ? here.previousElementSibling : doc.lastElementChild,
      Home: doc.firstElementChild,
      End: doc.lastElementChild,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    if (to) {
      to.scrollIntoView({ block: "nearest" });
      show(to);
    }
  });

  const wanted = (name) => {
    if (name) root.dataset.theme = name;
  };
  try {
    wanted(localStorage.getItem("shardmill-theme"));
  } catch (_) { /* a page from disk may not remember anything in some browsers */ }
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    wanted(dark ? "light" : "dark");
    try {
      localStorage.setItem("shardmill-theme", root.dataset.theme);
    } catch (_) { /* as above */ }
  });
})();
