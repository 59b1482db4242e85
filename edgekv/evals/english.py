"""English made from a seed: words, and prose of sentences that hang together. What is made never holds a digit."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator


def listed(text: str) -> list[str]:
    """Return the items of a text, which commas separate."""
    return [" ".join(item.split()) for item in text.split(",")]


# No word is part of another one, so that a reply that names one does not seem to name two.
THINGS = listed("""
    acorn, almond, anchor, apron, barrel, basket, beaker, bellows, blanket, bobbin, bonnet, boulder, bucket, button,
    candle, canvas, carpet, compass, cradle, curtain, dagger, desk, diary, drawer, drum, easel, feather, fender,
    fiddle, flask, garland, glove, goblet, guitar, hammer, harness, helmet, hinge, jacket, jigsaw, kettle, ladder,
    lantern, leaflet, letter, locket, magnet, mantle, medal, mirror, mitten, napkin, needle, paddle, parcel, pebble,
    pendant, pepper, piano, pillow, pitcher, pocket, pulley, puppet, quilt, ribbon, rocket, saddle, scarf, shovel,
    shutter, sickle, sleeve, spindle, sponge, stool, sundial, tablet, teapot, thimble, ticket, trumpet, umbrella,
    vase, violin, wallet, whistle, wrench, zipper
""")

SIGHTS = listed("""
    balcony, banner, beacon, bridge, cabin, castle, cellar, chapel, chimney, cobbler, copper, cottage, dome, donkey,
    emerald, engine, falcon, fountain, furnace, garden, granite, harbour, honey, jungle, kitten, lemon, lobster,
    maple, marble, meadow, nutmeg, oatmeal, orchard, organ, oyster, palace, parsley, pigeon, planet, plough,
    pottery, pumpkin, quarry, rabbit, radish, sailor, signpost, silver, squirrel, statue, temple, thistle, timber,
    tunnel, turnip, turtle, velvet, wagon, walnut, willow, window
""")

ADJECTIVES = listed("""
    amber, ancient, bitter, blue, borrowed, brave, brittle, broken, careful, clever, cloudy, coarse, costly,
    crimson, crooked, curious, dainty, dusty, eager, earnest, elegant, empty, faded, faithful, famous, foreign,
    fragile, frosty, gentle, gloomy, golden, graceful, green, handsome, hasty, heavy, hidden, hollow, honest,
    humble, idle, jolly, kindly, little, lively, lonely, lovely, lucky, mellow, merry, mighty, modest, muddy,
    narrow, noble, orange, patient, peculiar, plain, polished, proper, purple, quaint, quiet, rapid, rare, rough,
    round, rustic, scarlet, secret, shallow, shining, silent, simple, slender, smooth, solemn, spotted, square,
    stout, sturdy, sudden, sunny, tender, thick, thirsty, tidy, tiny, useful, vivid, warm, weary, white, wicked,
    wide, wild, wooden, yellow
""")

NOUNS = THINGS + SIGHTS
WORDS = NOUNS + ADJECTIVES

_MEN = listed("Albert, Bernard, Edwin, Frederick, George, Henry, Julian, Leonard, Oliver")
_WOMEN = listed("Agnes, Beatrice, Caroline, Dorothy, Eleanor, Harriet, Louisa, Martha")
_PEOPLE = [(name, "he", "him", "his") for name in _MEN] + [(name, "she", "her", "her") for name in _WOMEN]

_LISTS = {
    "noun": THINGS,
    "adj": ADJECTIVES,
    "place": listed("""
        market, mill, old church, river, railway station, inn by the road, harbour wall, village school, edge of the
        wood, baker's shop, upper field, town hall, ferry, blacksmith's yard, kitchen garden, library
    """),
    "room": listed("kitchen, hall, back room, attic, parlour, study, workshop, pantry"),
    "when": listed("""
        Early in the morning, Towards evening, On the following day, When the rain had stopped, After breakfast,
        Late in the autumn, That same afternoon, As soon as the bells had rung, On the last day of the fair, Before
        anyone else was awake, While the others were still at table, At the end of the week
    """),
    "weather": listed("""
        a cold wind blew from the hills, the fog lay over the fields, the sun stood low behind the roofs, it had
        begun to snow, the streets were still wet, the air smelled of smoke and apples, the clouds were breaking up
        at last, a thin rain fell without a sound
    """),
    "relative": listed("aunt, uncle, neighbour, brother, sister, grandmother, cousin, teacher, landlord, doctor"),
    "handled": listed("""
        mended, carried, found, cleaned, measured, painted, wrapped, examined, hid, sold, lifted, repaired, weighed,
        admired
    """),
    "felt": listed("""
        pleased, uneasy, tired, ashamed, grateful, astonished, hopeful, rather cross, out of breath, content
    """),
    "said": listed("said, answered, whispered, replied, remarked, called out"),
    "manner": listed("""
        slowly, with great care, without a word, in a hurry, for the third time, as well as anyone could
    """),
    "time": listed("an hour, half the night, a whole week, some minutes, a long while, most of the summer"),
}

_OPENINGS = [
    "{when} {name} went down to the {place}, for {weather}.",
    "{when}, {name} set out for the {place} with a {adj} {thing} under one arm.",
    "{name} had lived near the {place} for {time} before anyone spoke of the {thing}.",
    "There was a {adj} {thing} at the {place}, and {name} knew who had left it there.",
    "{when}, while {weather}, {name} {handled} the {thing} {manner}.",
    "Nobody at the {place} remembered when {name} had first come to ask about the {thing}.",
]
_SENTENCES = [
    "{he} {handled} the {adj} {thing} {manner} and put it back beside the {noun}.",
    "The {thing} was {adj}, and {he} could not decide whether to keep it.",
    "Behind the {place} stood a {thing} that had belonged to {his} {relative}.",
    "It took {him} {time} to reach the {place}, where {weather}.",
    "{his} {relative} had told {him} that a {adj} {thing} is worth more than a {adj} one.",
    '"You may have the {noun}," {said} {his} {relative}, "but leave the {thing} where it is."',
    '"I have never seen such a {adj} {thing}," {said} {name}.',
    '"Who has been in the {room}?" {said} the {relative}, looking at the {thing}.',
    "In the {room} there was nothing but a {noun}, a {noun} and a {adj} chair.",
    "{he} felt {felt}, because the {thing} had been {adj} only the day before.",
    "Nobody spoke for {time}, and the {thing} stayed on the floor of the {room}.",
    "The door of the {room} stood open, and {weather}.",
    "{he} wrote a long letter about it and sealed it with {adj} wax.",
    "Two children from the {place} came to look, and each of them wanted the {thing}.",
    "Then {he} thought of the {thing} in the {room} and was {felt} again.",
    "If the {thing} were lost, {his} {relative} would be sure to ask for it.",
    "A {adj} man at the {place} offered {him} a {noun} for the {thing}, which {he} refused.",
    "The {relative} laughed, shook {his} hand and {handled} the {thing} {manner}.",
    "They talked of the harvest, of the {adj} {thing} and of what it might cost to mend the roof.",
    "{he} waited at the {place} for {time}, but only the {relative} came by.",
    "Some people said that the {thing} was {adj}; others had not noticed it at all.",
    "Between the {place} and the {place} there was a path that few people knew.",
    "Every evening {he} {handled} the {thing}, and every morning it was {adj} once more.",
    "What {he} liked best was the {thing}, although it was {adj} and of little use.",
]
_CLOSINGS = [
    "So {he} went home, {felt}, and said nothing of the {thing} to anyone.",
    "In the end the {thing} was carried to the {room}, and there it remained.",
    "By then {weather}, and {name} lit the lamp in the {room}.",
    "That was the last that {name} heard of the {adj} {thing}.",
    "{name} slept soundly that night, and the {thing} was forgotten for {time}.",
]


def paragraphs(rng: random.Random) -> Iterator[str]:
    """Yield paragraphs of prose without end, each a few sentences about one person and one thing."""
    while True:
        name, he, him, his = rng.choice(_PEOPLE)
        subject = {"name": name, "he": he, "him": him, "his": his, "thing": rng.choice(THINGS)}
        middle = rng.sample(_SENTENCES, rng.randrange(3, 8))
        templates = [rng.choice(_OPENINGS), *middle, rng.choice(_CLOSINGS)]
        yield " ".join(_filled(rng, template, subject) for template in templates)


def distinct(draw: Callable[[], str]) -> Iterator[str]:
    """Yield what `draw` returns, again and again, but nothing twice."""
    seen = set()
    while True:
        drawn = draw()
        if drawn not in seen:
            seen.add(drawn)
            yield drawn


def _filled(rng: random.Random, template: str, subject: dict[str, str]) -> str:
    """Return a sentence of a template, in which no word is drawn twice."""
    said = set(subject.values())

    def draw(slot: re.Match[str]) -> str:
        if slot[1] in subject:
            return subject[slot[1]]
        word = rng.choice([choice for choice in _LISTS[slot[1]] if choice not in said])
        said.add(word)
        return word

    sentence = re.sub(r"\{(\w+)\}", draw, template)
    sentence = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", sentence)
    return sentence[0].upper() + sentence[1:]
