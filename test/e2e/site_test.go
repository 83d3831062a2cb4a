//go:build e2e

package e2e

import (
	"flag"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// siteDir is set by `make measure WHAT=site`.
var siteDir = flag.String("site", "", "open the pages of the documentation site in this directory")

// TestPagesOfTheSite opens every page of the documentation from disk, on a laptop and on a phone: no
// page is wider than the screen, reports a problem, or asks a server. The search finds pages without
// a server, too.
func TestPagesOfTheSite(t *testing.T) {
	if *siteDir == "" {
		t.Skip("Needs the built site: make measure WHAT=site.")
	}
	b := openBrowser(t)
	opened := 0
	for _, width := range []int{1280, 390} {
		err := filepath.WalkDir(*siteDir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".html") || filepath.Base(path) == "404.html" { // that one is for servers
				return err
			}
			opened++
			page := b.openTab(t, width, 900)
			defer page.close()
			page.navigate("file://" + path)
			var wider float64
			page.evaluate(`document.documentElement.scrollWidth - innerWidth`, &wider)
			if wider > 0 {
				t.Errorf("%s is %.0f columns wider than a screen of %d", path, wider, width)
			}
			var headings int
			page.evaluate(`document.querySelectorAll('h1').length`, &headings)
			if headings != 1 {
				t.Errorf("%s has %d titles", path, headings)
			}
			page.quiet("file://" + *siteDir)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	page := b.openTab(t, 1280, 900)
	page.navigate("file://" + filepath.Join(*siteDir, "index.html"))
	page.awaitTrue("the search finds pages", `(() => {
		const input = document.querySelector('.md-search__input')
		input.focus()
		input.value = 'calibration'
		input.dispatchEvent(new Event('input', {bubbles: true}))
		input.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))
		return document.querySelectorAll('.md-search-result__item').length > 3
	})()`)
	page.quiet("file://" + *siteDir)
	t.Logf("figures: %d pages, each at 1280 and 390 columns", opened/2)
}
